"""Kernels in Gluon on the CPU, which Triton's interpreter does not run: their own source, with tensors of PyTorch for Gluon's.

Layouts, warps and barriers mean nothing here, and every program runs by itself. What is checked besides the numbers:

- no load or store leaves its tensor;
- a tile of shared memory is not used while a copy into it is under way: a copy arrives at the ``wait_group`` that waits for it;
- what was written to shared memory is fenced before the matrix units read it.
"""

import itertools
import types

import torch
import triton.language as tl
from triton.experimental.gluon import language as gl

# of a launch, and nothing to the source
SETTINGS = ("num_warps", "maxnreg")
LAYOUTS = (
    "NVMMADistributedLayout",
    "DotOperandLayout",
    "BlockedLayout",
    "SliceLayout",
    "NVMMASharedLayout",
    "SwizzledSharedLayout",
)
ASSEMBLY = {
    "mov": lambda x: x,
    "tanh.approx": torch.tanh,
    "lg2.approx": torch.log2,
    "ex2.approx": torch.exp2,
    "rcp.approx": torch.reciprocal,
}


class Pointer:
    """An address, or a tensor of them, in the memory of a tensor."""

    def __init__(self, memory, offset=0):
        self.memory, self.offset = memory, offset
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, steps):
        return Pointer(self.memory, self.offset + steps)

    def __sub__(self, steps):
        return Pointer(self.memory, self.offset - steps)

    def places(self, mask):
        """Where it points, and whether it does there, all of one shape."""
        offset, mask = torch.broadcast_tensors(torch.as_tensor(self.offset), torch.as_tensor(True if mask is None else mask))
        outside = mask & ((offset < 0) | (offset >= self.memory.numel()))
        assert not outside.any(), "an address outside its tensor"
        return torch.where(mask, offset, 0), mask


def load(pointer, mask=None, other=0.0):
    places, mask = pointer.places(mask)
    if not mask.any():
        return torch.full(places.shape, other, dtype=pointer.memory.dtype)
    return torch.where(mask, pointer.memory[places], torch.tensor(other, dtype=pointer.memory.dtype))


def store(pointer, value, mask=None):
    places, mask = pointer.places(mask)
    value = torch.as_tensor(value).to(pointer.memory.dtype).broadcast_to(places.shape)
    pointer.memory[places[mask]] = value[mask]


class Copies:
    """Copies into shared memory that are under way, in groups."""

    def __init__(self):
        self.groups, self.open = [], []

    def start(self, tile, pointer, mask=None):
        """A copy that has begun: neither what was there nor what will be can be read."""
        tile.check()
        tile.coming.fill_(True)
        self.open.append((tile, load(pointer, mask)))

    def commit(self):
        self.groups.append(self.open)
        self.open = []

    def wait(self, pending):
        """All but the last ``pending`` groups arrive."""
        while len(self.groups) > pending:
            for tile, data in self.groups.pop(0):
                tile.coming.fill_(False)
                tile.store(data)


class Shared:
    """A tile of shared memory: what it holds, what of it is still to come, and what no fence was set behind."""

    def __init__(self, data, coming, loose):
        self.data, self.coming, self.loose = data, coming, loose
        self.shape, self.dtype = data.shape, data.dtype

    def seen(self, through):
        return Shared(through(self.data), through(self.coming), through(self.loose))

    def index(self, place):
        return self.seen(lambda x: x[int(place)])

    def slice(self, start, length):
        return self.seen(lambda x: x[start : start + length])

    def permute(self, order):
        return self.seen(lambda x: x.permute(order))

    def _reinterpret(self, dtype, shape, layout):
        """The same memory as other numbers, which only threads read, not the matrix units."""
        size = dtype.itemsize * torch.Size(shape).numel()
        again = self.data.reshape(-1).view(torch.uint8)[:size].view(dtype).view(shape)
        return Shared(again, torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool))

    def check(self):
        assert not self.coming.any(), "shared memory is used while a copy into it is under way"

    def load(self, layout=None):
        self.check()
        return self.data.clone()

    def store(self, value):
        self.check()
        assert (value.dtype, value.shape) == (self.dtype, self.shape), "numbers of another dtype or shape"
        self.data.copy_(value)
        self.loose.fill_(True)

    def operand(self):
        """As the matrix units read it."""
        self.check()
        assert not self.loose.any(), "the matrix units read what no fence was set behind"
        return self.data


class Program:
    """One program of a grid: its place, its shared memory, and the copies that are under way."""

    def __init__(self, place):
        self.place, self.rooms, self.copies = place, [], Copies()

    def allocate(self, dtype, shape, layout):
        empty = torch.zeros(shape, dtype=torch.bool)
        self.rooms.append(Shared(torch.full(shape, torch.nan, dtype=dtype), empty, empty.clone()))
        return self.rooms[-1]

    def fence(self):
        for room in self.rooms:
            room.loose.fill_(False)

    def language(self):
        """What Gluon's and Triton's languages name."""
        of_tensors = lambda function: lambda a, b: function(torch.as_tensor(a), torch.as_tensor(b))  # noqa: E731
        nothing = lambda *given, **named: None  # noqa: E731
        return types.SimpleNamespace(
            float32=torch.float32, int32=torch.int32, int64=torch.int64, load=load, store=store,
            allocate_shared_memory=self.allocate, thread_barrier=nothing,
            program_id=lambda axis: torch.tensor(self.place[axis]),
            arange=lambda start, end, layout=None: torch.arange(start, end), static_range=range,
            zeros=lambda shape, dtype, layout=None: torch.zeros(shape, dtype=dtype),
            convert_layout=lambda x, layout: x, reshape=torch.reshape, inline_asm_elementwise=assembled,
            where=torch.where, maximum=of_tensors(torch.maximum), minimum=of_tensors(torch.minimum),
            sum=lambda x, axis: x.sum(axis), max=lambda x, axis: x.amax(axis), reduce=reduce,
            abs=torch.abs, exp=torch.exp, exp2=torch.exp2, log=torch.log, sqrt=torch.sqrt, rsqrt=torch.rsqrt,
            sigmoid=torch.sigmoid, **dict.fromkeys(LAYOUTS, nothing),
        )  # fmt: skip


def product(a, b, c, use_acc=True):
    """c + a b, or a b alone."""
    a, b = (x.operand() if isinstance(x, Shared) else x for x in (a, b))
    assert a.dtype == b.dtype and c.dtype == torch.float32
    return c + a.float() @ b.float() if use_acc else a.float() @ b.float()


def reduce(values, axis, combine):
    """Numbers of equal places combined in pairs."""
    while (size := values[0].shape[axis]) > 1:
        halves = [x.split(size // 2, axis) for x in values]
        values = combine(*(first for first, _ in halves), *(second for _, second in halves))
    return tuple(x.squeeze(axis) for x in values)


def assembled(text, constraints, given, dtype, is_pure, pack):
    """The one instruction of an inline assembly."""
    (found,) = (run for name, run in ASSEMBLY.items() if text.startswith(name))
    return found(*given)


def translated(jitted, program, known):
    """The source of a kernel or of a device function, in which Gluon's names mean what they do in a program here."""
    # the hash of a kernel would be that of all it calls
    if id(jitted) in known:
        return known[id(jitted)]
    source, names = jitted.fn, {}
    known[id(jitted)] = types.FunctionType(source.__code__, names, source.__name__, source.__defaults__)
    ours = {
        "async_copy": types.SimpleNamespace(
            async_copy_global_to_shared=program.copies.start, commit_group=program.copies.commit, wait_group=program.copies.wait
        ),
        "fence_async_shared": program.fence,
        "warpgroup_mma": product,
    }
    for name in source.__code__.co_names:
        if name in ours:
            names[name] = ours[name]
        elif name in source.__globals__:
            names[name] = meant(source.__globals__[name], program, known)
    return known[id(jitted)]


def meant(value, program, known):
    """A global name of a source, or an argument of a launch."""
    if value is gl or value is tl:
        return program.language()
    if isinstance(value, tl.constexpr):
        return value.value
    if isinstance(value, torch.Tensor):
        room = value.untyped_storage().nbytes() // value.itemsize - value.storage_offset()
        return Pointer(value.detach().as_strided((room,), (1,)))
    return translated(value, program, known) if hasattr(value, "fn") else value


class Kernel:
    """A kernel in Gluon, launched as Triton launches one; it adds its name to ``launches``."""

    def __init__(self, jitted, launches):
        self.jitted, self.launches = jitted, launches

    def __getitem__(self, grid):
        def launched(*given, **named):
            self.launches.append(self.jitted.fn.__name__)
            for place in itertools.product(*map(range, grid)):
                program, known = Program(place), {}
                arguments = [meant(value, program, known) for value in given]
                told = {name: meant(value, program, known) for name, value in named.items() if name not in SETTINGS}
                translated(self.jitted, program, known)(*arguments, **told)
                assert not program.copies.open and not program.copies.groups, "a program ends before its copies have arrived"

        return launched
