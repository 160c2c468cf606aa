"""The game of relay.py as a graph of langgraph, whose nodes are calls through an OpenAI client.

environment: gateway
gateway: {function: "relay_langgraph:play", roles: [first, second]}
"""

import operator
from typing import Annotated, Any, TypedDict

import httpx
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from docs.examples.relay import MOVES, SEATS, names, read, result, show

CLIENT = httpx.AsyncClient(trust_env=False, timeout=60.0)


class Game(TypedDict):
    cards: str
    moves: Annotated[list[str], operator.add]


async def play(episode: Any) -> dict[str, Any]:
    """Play the cards of the task."""
    graph = StateGraph(Game)
    for number, seat in enumerate(SEATS):
        model = ChatOpenAI(
            model=seat, base_url=episode.base_url, api_key=episode.token, http_async_client=CLIENT, max_retries=0
        )

        async def move(state: Game, model: ChatOpenAI = model, number: int = number) -> dict[str, Any]:
            answer = await model.ainvoke(show(state["cards"][number], state["moves"]))
            return {"moves": [read(answer.text)]}

        graph.add_node(seat, move)
    graph.add_edge(START, SEATS[0])
    graph.add_edge(*SEATS)
    graph.add_conditional_edges(SEATS[1], lambda state: SEATS[0] if len(state["moves"]) < MOVES else END)
    cards = episode.task.prompt
    moves = (await graph.compile().ainvoke({"cards": cards, "moves": []}))["moves"]
    right = [names(moves[2], cards[1]), names(moves[3], cards[0])]
    return result([0.5 * right[0], 0.5 * right[1]], right)
