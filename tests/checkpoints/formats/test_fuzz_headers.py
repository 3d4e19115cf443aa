"""A few thousand files of the fuzz in `benchmarks`: what we read of a header is what the official parser reads."""

import pytest

from benchmarks.fuzz_headers import examine


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_headers_are_read_as_the_official_parser_reads_them(seed: int) -> None:
    count, accepted, odd = examine((seed, 3000))
    assert odd == []
    assert accepted > count / 10
