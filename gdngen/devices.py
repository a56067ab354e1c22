"""What each device gives a block: `devices.yaml`, read once."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from gdngen.errors import GdngenError, did_you_mean


@dataclass(frozen=True)
class Device:
    """Limits of one device, in bytes; 0 where a number is not known. `switch`: whether the TileLang that
    is used there can turn off its own merging."""

    name: str
    target: str
    block: int
    reserved: int = 0
    per_block: int = 0
    sm_shared: int = 0  # KiB
    sm_threads: int = 0
    sm_blocks: int = 0
    sm_registers: int = 0
    warp: int = 32
    switch: bool = True

    @property
    def limit(self) -> int:
        """Most bytes that a plan may use."""
        return self.block - self.reserved

    def blocks_per_sm(self, asked: int, threads: int, registers: int | None = None) -> int:
        """Blocks resident on one SM at once; `asked` in bytes, `registers` a thread if known."""
        if asked > self.limit:
            return 0
        per_block = -(-(asked + self.per_block) // 128) * 128
        caps = [self.sm_shared * 1024 // per_block] if per_block else []
        if self.sm_threads:
            caps += [self.sm_threads // threads, self.sm_blocks]
        if self.sm_registers and registers:
            caps.append(self.sm_registers // (-(-registers // 8) * 8 * threads))
        return min(caps)


@cache
def devices() -> dict[str, Device]:
    rows = yaml.safe_load(files("gdngen").joinpath("devices.yaml").read_text())
    return {name: Device(name, **row) for name, row in rows.items()}


def device(name: str) -> Device:
    """The row of that name; `GdngenError` if there is none."""
    if name not in devices():
        raise GdngenError(
            f"error: unknown device '{name[:40]}'{did_you_mean(name, devices())}\n"
            f"  help: devices: {' '.join(devices())}"
        )
    return devices()[name]
