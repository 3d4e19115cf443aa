"""Generated state dicts and pickles: what PyTorch accepts is read alike, and whatever else is refused cleanly."""

import io
import pickle
from collections import OrderedDict

import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from headscope.core.checkpoints.formats.pickle.interpreter import read_pickle
from headscope.core.checkpoints.formats.torch_file import read_torch_headers
from headscope.errors import HeadscopeError

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.float64)
_TENSORS = st.builds(
    lambda shape, dtype, turned: torch.zeros(shape, dtype=dtype).T if turned else torch.zeros(shape, dtype=dtype),
    st.lists(st.integers(0, 4), min_size=2, max_size=2),
    st.sampled_from(_DTYPES),
    st.booleans(),
)
_STATES = st.dictionaries(st.text(max_size=20), _TENSORS, max_size=5)
_SIMPLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


class InMemory:
    """A weight file that is nowhere but here."""

    name = "pytorch_model.bin"
    bytes_read = 0

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._content = content

    def read_at(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_STATES, st.booleans(), st.booleans())
def test_a_state_dict_is_read_as_pytorch_reads_it(
    state: dict[str, torch.Tensor], is_zip: bool, is_ordered: bool
) -> None:
    file = io.BytesIO()
    torch.save(OrderedDict(state) if is_ordered else state, file, _use_new_zipfile_serialization=is_zip)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=True, map_location="meta")
    headers, _ = read_torch_headers(InMemory(file.getvalue()))
    theirs = {key: (str(value.dtype).removeprefix("torch."), tuple(value.shape)) for key, value in loaded.items()}
    assert {header.key: (header.dtype, header.shape) for header in headers} == theirs


@settings(max_examples=300, deadline=None)
@given(_SIMPLE, st.integers(0, 5))
def test_simple_values_are_read_as_they_are_or_refused(value: object, protocol: int) -> None:
    text = pickle.dumps(value, protocol)
    try:
        found = read_pickle(io.BytesIO(text), "x")
    except HeadscopeError:
        return
    assert repr(found) == repr(value)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60), _SIMPLE, st.integers(0, 60), st.integers(0, 5))
def test_no_bytes_raise_anything_but_our_errors(noise: bytes, value: object, at: int, protocol: int) -> None:
    text = pickle.dumps(value, protocol)
    for content in (noise, text[:at] + noise + text[at:], text[:at] + noise):
        try:
            read_pickle(io.BytesIO(content), "x")
        except HeadscopeError as error:
            assert error.message
