"""Look at the machine code of a deep memory's kernels, without a GPU: what ptxas spilled, what it forgot to set, what must fit.

    python benchmarks/machine_code.py --heads 2,4,10,16 --out benchmarks/results/machine-code-sm90.json
    python benchmarks/machine_code.py --capability 80 --chunks 64,32,16 --out benchmarks/results/machine-code-sm80.json

Under some versions ptxas leaves a uniform register unset that a matrix instruction then takes an address from: right in the
interpreter, wrong or an illegal access on the GPU. Reads of uniform registers before any write, in the order of the program,
show it; a value that nothing needs can be read so as well, so what is found is to be looked at. Heads and channels are
constants of the kernels, so each number of heads has machine code of its own. The Triton that is installed compiles: take the
GPU's. Under any but 3.6 Hopper gets the kernels in plain Triton, and those are looked at. So do other GPUs, which have less
shared memory for a program: 163 KiB (A100), 99 (RTX 3090, 4090 and 5090, A10, L4, L40S), not 227 (H100, H200, B200).
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from launching import Driver, as_on_hopper, call_of
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from miras.kernels import launch
from miras.lab.provenance import provenance

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("ttt_mlp", "yaad", "moneta", "memora", "titans_lmm")},
    **{f"{name}, anchored": (name, {"anchor": True}) for name in ("yaad", "moneta", "memora", "titans_lmm")},
    # its step between chunks is PyTorch's, and its chunks' own writes move reads by a slope
    "moneta, exact link": ("moneta", {"link": "exact"}),
}
HOPPER = 90
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?);\s*$")


class Unset(NamedTuple):
    """An instruction that reads a uniform register which nothing before it writes."""

    place: str
    instruction: str
    register: int


def tool(name: str, *given: str | Path) -> str:
    """What one of the CUDA tools beside Triton says."""
    return subprocess.run([TOOLS / name, *given], capture_output=True, text=True, check=True).stdout


def read_by(operation: str, arguments: list[str], place: int) -> list[int]:
    """The uniform registers that one argument of an instruction reads: an address has two, a descriptor of a product four."""
    argument = arguments[place]
    found = []
    for number in map(int, re.findall(r"UR(\d+)", argument)):
        if "gdesc" in argument:
            # where the left factor is in registers, the descriptor of the right one is the second half
            half = operation.startswith("HGMMA") and not arguments[1].startswith("gdesc")
            found += range(number + 2 if half else number, number + 4)
        else:
            wide = operation.startswith("UIADD3") and operation.endswith(".64")
            pair = wide or "desc[" in argument or argument.endswith(".64")
            found += range(number, number + 2 if pair else number + 1)
    return found


def unset(code: str) -> list[Unset]:
    """Reads of uniform registers before any write to them, in the order of the program."""
    written: set[int] = set()
    found = []
    for line in code.splitlines():
        matched = INSTRUCTION.match(line)
        if matched is None:
            continue
        place, operation, rest = matched.groups()
        arguments = [argument.strip() for argument in rest.split(",")]
        target = re.fullmatch(r"UR(\d+)", arguments[0])
        for number in range(1 if target else 0, len(arguments)):
            reads = read_by(operation, arguments, number)
            found += [Unset(place, f"{operation} {rest}", register) for register in reads if register not in written]
        if target:
            first = int(target.group(1))
            written |= {first, first + 1} if ".64" in operation or "WIDE" in operation else {first}
    return found


def looked_at(binary: bytes) -> dict[str, Any]:
    """Registers and spilled bytes a thread, and what is read unset."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        usage = tool("cuobjdump", "-res-usage", file.name)
        code = tool("nvdisasm", "-c", file.name)
    numbers = {name: int(found.group(1)) for name in ("REG", "STACK") if (found := re.search(rf"{name}:(\d+)", usage))}
    return {"registers": numbers.get("REG"), "stack": numbers.get("STACK"), "unset": [tuple(one) for one in unset(code)]}


def compiling(found: dict[str, dict[str, Any]]) -> None:
    """Have every launch compile its kernel, look at it once, and launch nothing."""
    run = JITFunction.run
    known: dict[str, dict[str, Any]] = {}

    def compiled(self: JITFunction, *given: Any, grid: Any = None, warmup: bool = False, **named: Any) -> Any:
        kernel = run(self, *given, grid=(1,), warmup=True, **named)
        if kernel.hash not in known:
            known[kernel.hash] = looked_at(kernel.asm["cubin"]) | {"shared": kernel.metadata.shared}
        found[self.__name__] = known[kernel.hash]
        return kernel

    JITFunction.run = compiled


def told(label: str, found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a call's kernels are like, printed and as a row."""
    most = max(found, key=lambda kernel: found[kernel]["shared"])
    print(f"{label}: {len(found)} kernels, {found[most]['shared'] / 1024:.0f} KiB of shared memory ({most})", flush=True)
    for what in ("stack", "unset"):
        said = {kernel: own[what] for kernel, own in found.items() if own[what]}
        print(f"{label}: {what} {said or 'none'}", flush=True)
    return dict(found)


def kernels_of(capability: int) -> tuple[bool, str]:
    """Whether a GPU of a compute capability gets the kernels in Gluon under this Triton, and what is looked at, in words."""
    if capability == HOPPER and launch.GLUON:
        return True, "Hopper's kernels, the large ones in Gluon"
    why = f", which Hopper gets under Triton {triton.__version__}: those in Gluon need 3.6" if capability == HOPPER else ""
    return False, f"the kernels in plain Triton{why}"


def main() -> None:
    """The command."""
    numbers = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=CASES, default=list(CASES), metavar="NAME", help=f"of {'; '.join(CASES)}"
    )
    parser.add_argument("--heads", type=numbers, default=[16], help="numbers of heads, between commas (default 16)")
    parser.add_argument("--channels", type=numbers, default=[64], help="channels a head, between commas (default 64)")
    parser.add_argument("--chunks", type=numbers, default=[64], help="tokens of a chunk, between commas (default 64)")
    parser.add_argument("--capability", type=int, default=90, help="of the GPU, such as 80 or 89 (default 90, Hopper)")
    parser.add_argument("--out", type=Path, help="a JSON file for what was found")
    given = parser.parse_args()
    torch.set_num_threads(1)
    resident, said = kernels_of(given.capability)
    print(said, flush=True)
    as_on_hopper(resident=resident)
    Driver.target = GPUTarget("cuda", given.capability, 32)
    found: dict[str, dict[str, Any]] = {}
    compiling(found)
    rows: dict[str, dict[str, Any]] = {}
    for name, heads, channels, chunk in itertools.product(given.models, given.heads, given.channels, given.chunks):
        preset, options = CASES[name]
        call, _ = call_of(preset, heads=heads, channels=channels, chunk=chunk, **options)
        label = f"{name}, {heads} heads of {channels}" + (f", chunks of {chunk}" if len(given.chunks) > 1 else "")
        found.clear()
        call().sum().backward()
        rows[label] = told(label, found)
        found.clear()
        with torch.no_grad():
            call()
        label += ", without gradients"
        rows[label] = told(label, found)
    if given.out:
        command = shlex.join(["python", "benchmarks/machine_code.py", *sys.argv[1:]])
        made = provenance("triton") | {"command": command, "looked at": said}
        given.out.write_text(json.dumps({"provenance": made, "kernels": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
