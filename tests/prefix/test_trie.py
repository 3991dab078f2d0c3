"""The trie and its bound, against the plainest possible answers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.prefix.eviction import StateCache, over_budget
from llmrun.prefix.reuse import common_prefix
from llmrun.prefix.trie import PrefixTrie

TOKENS = st.lists(st.integers(0, 2), max_size=12).map(tuple)
quick = settings(deadline=None, database=None)


def all_of_it(_handle: int, common: int) -> int:
    return common


@quick
@given(
    st.lists(
        st.tuples(st.sampled_from(["insert", "insert", "remove"]), st.integers(0, 9), TOKENS), max_size=40
    ),
    TOKENS,
    st.dictionaries(st.integers(0, 9), st.integers(0, 12)),
)
def test_the_longest_usable_prefix_is_that_of_a_search_through_all(
    changes: list[tuple[str, int, tuple[int, ...]]], prompt: tuple[int, ...], most: dict[int, int]
) -> None:
    """`most` caps what is usable of some handles, as windows and recurrent states do."""
    trie: PrefixTrie[int] = PrefixTrie()
    stored: dict[int, tuple[int, ...]] = {}
    for what, handle, tokens in changes:
        if what == "insert":
            trie.insert(tokens, handle)
            stored[handle] = tokens
        else:
            trie.remove(handle)
            stored.pop(handle, None)

    def usable(handle: int, common: int) -> int:
        assert common == common_prefix(stored[handle], prompt)
        return min(common, most.get(handle, 99))

    found = trie.longest(prompt, usable)
    best = max((usable(h, common_prefix(t, prompt)) for h, t in stored.items()), default=0)
    assert (found.usable if found else 0) == best
    if found:
        assert usable(found.handle, found.common) == best


def test_a_trie_forgets_its_nodes_with_its_handles() -> None:
    trie: PrefixTrie[str] = PrefixTrie()
    trie.insert([1, 2, 3, 4], "a")
    trie.insert([1, 2, 9], "b")
    trie.insert([1, 2], "c")
    for handle in "abc":
        trie.remove(handle)
    assert not trie._root.children
    assert trie.longest([1, 2, 3], lambda _, common: common) is None


@quick
@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 100)), max_size=12),
    st.integers(0, 200),
)
def test_the_longest_unused_go_until_the_rest_fits(sizes: list[tuple[int, float]], budget: int) -> None:
    entries = [(i, size, used) for i, (size, used) in enumerate(sizes)]
    removed = over_budget(entries, budget)
    kept = [entry for entry in entries if entry[0] not in removed]
    assert sum(size for _, size, _ in kept) <= budget or not kept
    uses = {handle: used for handle, _, used in entries}
    assert all(uses[gone] <= used for gone in removed for _, _, used in kept)
    if removed:  # the last one to go was needed to get below the bound
        last = next(entry for entry in entries if entry[0] == removed[-1])
        assert sum(size for _, size, _ in kept) + last[1] > budget


@quick
@given(st.lists(st.tuples(st.integers(0, 5), TOKENS, st.integers(0, 60)), max_size=30), TOKENS)
def test_a_cache_never_holds_more_than_its_bound(
    inserted: list[tuple[int, tuple[int, ...], int]], prompt: tuple[int, ...]
) -> None:
    cache: StateCache[int] = StateCache(100)
    held: dict[int, tuple[int, ...]] = {}
    sizes: dict[int, int] = {}
    for handle, tokens, size in inserted:
        held[handle], sizes[handle] = tokens, size
        for gone in cache.insert(tokens, handle, size):
            del held[gone]
        assert sum(sizes[kept] for kept in held) <= 100
        assert handle in held  # the newest always fits: no state here is larger than the bound
    found = cache.longest(prompt, all_of_it)
    assert (found.usable if found else 0) == max((common_prefix(t, prompt) for t in held.values()), default=0)


def test_what_is_used_stays() -> None:
    cache: StateCache[str] = StateCache(100)
    cache.insert([1], "old", 40)
    cache.insert([2], "newer", 40)
    cache.touch("old")
    assert cache.insert([3], "newest", 40) == ["newer"]
    assert cache.insert([4], "too large", 101) == ["too large"]
    found = [cache.longest([token], lambda _, common: common) for token in (1, 2, 3, 4)]
    assert [one and one.handle for one in found] == ["old", None, "newest", None]
