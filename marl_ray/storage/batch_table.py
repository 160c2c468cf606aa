"""The file of one step of the batch log: an Arrow stream, followed by the SHA-256 of its bytes in hexadecimal.

    import pyarrow.ipc
    table = pyarrow.ipc.open_stream("step_000012.arrow").read_all()   # the digest is behind the end of the stream

A row is a group, and the record batches are the agents. The metadata `step` of the schema is a JSON object with
everything else. All numbers are stored exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import AgentCall, Completion

FORMAT = 3
"""Versions up to 0.2 wrote format 2 (`marl_ray.storage.batch_log_0_2`)."""
METADATA = b"step"

IDS = pa.list_(pa.int32())
REALS = pa.list_(pa.float64())
SPAN = pa.struct({"version": pa.int64(), "tokens": pa.int64()})
CALL = pa.struct(
    {
        "prompt": pa.int32(),  # place in the group's prompts
        "branch": pa.int32(),
        "sibling": pa.int32(),
        "token_ids": IDS,
        "logprobs": REALS,
        "finish_reason": pa.utf8(),
        "spans": pa.list_(SPAN),
        "json_schema": pa.int32(),  # place in the group's schemas
    }
)
INPUT = pa.struct({"name": pa.utf8(), "values": REALS})
CRITIC_SAMPLE = pa.struct({"state": IDS, "rewards": REALS, "successors": pa.list_(pa.list_(IDS))})
GROUP = pa.struct(
    {
        "agent": pa.int32(),
        "mini_batch": pa.int32(),
        "turn": pa.int32(),
        "prompts": pa.list_(IDS),
        "json_schemas": pa.list_(pa.utf8()),
        "calls": pa.list_(CALL),
        "returns": REALS,
        "weights": REALS,
        "inputs": pa.list_(INPUT),
        "critic_samples": pa.list_(CRITIC_SAMPLE),  # one with a critic, otherwise none
    }
)


def encode_step(header: Mapping[str, Any], batches: Sequence[Batch]) -> bytes:
    """Return the stream of a step with one batch per agent. `header` is further data."""
    normalizers: list[list[int]] = []
    records: list[pa.RecordBatch] = []
    for agent, batch in enumerate(batches):
        normalizers.append([mini_batch.normalizer for mini_batch in batch.mini_batches])
        rows: list[tuple[Any, ...]] = []
        for number, mini_batch in enumerate(batch.mini_batches):
            rows += [_row(group, agent, number) for group in mini_batch.groups]
        records.append(pa.RecordBatch.from_struct_array(_to_arrow(rows, GROUP)))
    content = {"format": FORMAT, "agents": len(batches), "normalizers": normalizers, **header}
    schema = pa.schema(list(GROUP), metadata={METADATA: json.dumps(content)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for record in records:
            writer.write_batch(record)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


class StepTable:
    """The content of one file, whose digest has been checked."""

    def __init__(self, content: bytes) -> None:
        self._reader = pa.ipc.open_stream(pa.py_buffer(content))
        self.header: dict[str, Any] = json.loads(self._reader.schema.metadata[METADATA])
        self._records: list[pa.RecordBatch] = list(self._reader)

    def batch(self, agent: int) -> Batch:
        """Return an agent's batch. Completions and prompts have no text."""
        normalizers = self.header["normalizers"][agent]
        groups: list[list[Group]] = [[] for _ in normalizers]
        for row in _from_arrow(self._records[agent].to_struct_array()):
            mini_batch, group = _group(row)
            groups[mini_batch].append(group)
        mini_batches: list[MiniBatch] = []
        for of_mini_batch, normalizer in zip(groups, normalizers, strict=True):
            mini_batches.append(MiniBatch(tuple(of_mini_batch), normalizer))
        return Batch(self.header["step"], tuple(mini_batches))


def _row(group: Group, agent: int, mini_batch: int) -> tuple[Any, ...]:
    """Return a group as a row, in the order of GROUP. Equal prompts and schemas of its calls are stored once."""
    if not len(group.calls) == len(group.returns) == len(group.weights):
        raise ValueError("a group needs one return and one weight per completion")
    prompts: dict[tuple[int, ...], int] = {}
    schemas: dict[str, int] = {}
    calls: list[tuple[Any, ...]] = []
    for call in group.calls:
        completion = call.completion
        if len(completion.token_ids) != len(completion.logprobs):
            raise ValueError(f"{len(completion.token_ids)} tokens have {len(completion.logprobs)} logprobs")
        prompt = prompts.setdefault(call.prompt_ids, len(prompts))
        schema = schemas.setdefault(completion.json_schema, len(schemas))
        sampled = (completion.token_ids, completion.logprobs, completion.finish_reason, completion.spans, schema)
        calls.append((prompt, call.branch, call.sibling, *sampled))
    samples: list[tuple[Any, ...]] = []
    if group.critic_sample is not None:
        sample = group.critic_sample
        samples.append((sample.state, sample.rewards, sample.successors))
    values = (group.returns, group.weights, list(group.inputs.items()), samples)
    return agent, mini_batch, group.turn, list(prompts), list(schemas), calls, *values


def _group(row: tuple[Any, ...]) -> tuple[int, Group]:
    """Return the number of the mini-batch and the group of a row: the inverse of `_row` except for texts."""
    agent, mini_batch, turn, prompts, schemas, rows, returns, weights, inputs, samples = row
    calls: list[AgentCall] = []
    for prompt, branch, sibling, ids, logprobs, reason, spans, schema in rows:
        completion = Completion(ids, "", logprobs, reason, spans, schemas[schema])
        calls.append(AgentCall(agent, "", prompts[prompt], completion, branch, sibling))
    sample = CriticSample(*samples[0]) if samples else None
    return mini_batch, Group(turn, tuple(calls), returns, weights, dict(inputs), sample)


# Arrow arrays to and from nested Python sequences. pyarrow's own conversions import pandas, which takes a second, and
# its `to_pylist` creates an object per number first.


def _to_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values of one type as an array: for a list any sequence, for a struct a tuple in the order of fields."""
    if pa.types.is_list(kind):
        lengths = list(map(len, values))
        items = _to_arrow(list(chain.from_iterable(values)), kind.value_type)
        return pa.ListArray.from_arrays(_numbers(_offsets(lengths), pa.int32()), items)
    if pa.types.is_struct(kind):
        fields: list[pa.Array] = []
        for place in range(kind.num_fields):
            fields.append(_to_arrow([value[place] for value in values], kind[place].type))
        return pa.StructArray.from_arrays(fields, fields=list(kind))
    if pa.types.is_string(kind):
        texts = [text.encode("utf-8", "surrogatepass") for text in values]
        offsets = np.array(_offsets(map(len, texts)), np.int32)
        return pa.Array.from_buffers(kind, len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))])
    return _numbers(values, kind)


def _numbers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    content = np.array(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(content), [None, pa.py_buffer(content)])


def _offsets(lengths: Iterable[int]) -> list[int]:
    """Return the beginning of each item, and the end of the last one."""
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return offsets


def _from_arrow(array: pa.Array) -> list[Any]:
    """Return the values of an array: the inverse of `_to_arrow`, with tuples for lists and structs."""
    kind = array.type
    if pa.types.is_list(kind):
        items = iter(_from_arrow(array.values))
        offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1)
        return [tuple(islice(items, length)) for length in np.diff(offsets).tolist()]
    if pa.types.is_struct(kind):
        return list(zip(*(_from_arrow(array.field(place)) for place in range(kind.num_fields)), strict=True))
    if not len(array):  # an empty array need not have buffers
        return []
    if pa.types.is_string(kind):
        _, offsets, texts = array.buffers()
        ends = np.frombuffer(offsets, np.int32, len(array) + 1).tolist()
        content = b"" if texts is None else texts.to_pybytes()
        return [content[ends[n] : ends[n + 1]].decode("utf-8", "surrogatepass") for n in range(len(array))]
    values: list[Any] = np.frombuffer(array.buffers()[1], kind.to_pandas_dtype(), len(array)).tolist()
    return values
