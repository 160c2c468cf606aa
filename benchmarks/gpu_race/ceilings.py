"""The machine's ceilings."""

from __future__ import annotations

from benchmarks.gpu_race.race import Race, median_seconds, torch_dtype

LAUNCHES = 4000


def ceilings(race: Race) -> None:
    """Measure copies between host and device, a matrix product, the time of a kernel's launch, and allocations."""
    import torch

    size = 2**20 if race.on_cpu else 2**28
    host = torch.empty(size, dtype=torch.uint8, pin_memory=not race.on_cpu)
    there = torch.empty(size, dtype=torch.uint8, device=race.device)
    race.add(
        "ceilings",
        "copies",
        to_device_gb_per_s=size / 1e9 / median_seconds(race, lambda: there.copy_(host, non_blocking=True)),
        to_host_gb_per_s=size / 1e9 / median_seconds(race, lambda: host.copy_(there, non_blocking=True)),
    )
    race.add("ceilings", "matrix product", tflop_per_s=matrix_product_flops(race) / 1e12)
    small = torch.zeros(8, device=race.device)

    def launch() -> None:
        for _ in range(LAUNCHES):
            small.add_(1)

    race.add("ceilings", "launches", us_per_kernel=1e6 * median_seconds(race, launch) / LAUNCHES)
    if not race.on_cpu:
        del host, there

        def allocate() -> None:
            torch.cuda.empty_cache()
            torch.empty(2**30, dtype=torch.uint8, device=race.device)

        race.add("ceilings", "allocation", ms_per_gib=1e3 * median_seconds(race, allocate))


def matrix_product_flops(race: Race) -> float:
    """Return the FLOP/s of one large matrix product in the race's dtype."""
    import torch

    side = 256 if race.on_cpu else 8192
    left, right = (torch.randn(side, side, dtype=torch_dtype(race), device=race.device) for _ in range(2))
    product = torch.empty_like(left)
    return 2 * side**3 / median_seconds(race, lambda: torch.mm(left, right, out=product))
