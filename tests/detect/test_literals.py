from hypothesis import given, settings
from hypothesis import strategies as st

from agent.detect import literals
from agent.detect.literals import LiteralIndex, choose_anchors

MANY = [f"--flag-number-{n:03d} needs a value of {n}".encode() for n in range(300)]
ANCHORS = choose_anchors(MANY, ordinary=b"an ordinary line\n")


def test_hits_come_in_order_with_the_end_of_each() -> None:
    index = LiteralIndex([b"abcd", b"xyzq"])
    assert index.scan(b"--abcd--xyzq--abcd") == ([(0, 6), (1, 12), (0, 18)], False)


def test_no_literals_find_nothing() -> None:
    assert LiteralIndex([]).scan(b"anything") == ([], False)


def test_beyond_the_limit_each_literal_is_still_found_once() -> None:
    index = LiteralIndex([b"abcd", b"rare text"])
    hits, sampled = index.scan(b"abcd" * 5000 + b"rare text", limit=100)
    assert sampled and len(hits) == 102
    assert hits[-1] == (1, 20009)


def test_few_shared_fragments_stand_for_many_literals() -> None:
    assert len(ANCHORS) < 20
    assert all(any(a in literal for a in ANCHORS) for literal in MANY)


def test_no_anchor_is_a_fragment_of_ordinary_text() -> None:
    chosen = choose_anchors([b"the server is ready now", b"a failure of the server"], ordinary=b"the server is ready")
    assert not any(a in b"the server is ready" for a in chosen)
    assert any(a in b"a failure of the server" for a in chosen)


def test_a_literal_of_nothing_but_ordinary_fragments_is_still_found() -> None:
    texts = [*MANY, b"an ordinary line"]
    index = LiteralIndex(texts, anchors=choose_anchors(texts, ordinary=b"an ordinary line\n"))
    assert index.scan(b"this is an ordinary line indeed")[0] == [(300, 24)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(MANY), st.sampled_from(MANY).map(lambda t: t[:17]), st.binary(max_size=60))))
def test_anchors_change_what_it_costs_and_not_what_is_found(parts: list[bytes]) -> None:
    text = b"".join(parts)
    plain, fast = LiteralIndex(MANY), LiteralIndex(MANY, anchors=ANCHORS)
    assert sorted(fast.scan(text, limit=10**6)[0]) == sorted(plain.scan(text, limit=10**6)[0])


def test_the_sample_of_a_hostile_block_holds_every_literal_that_occurs() -> None:
    index = LiteralIndex(MANY, anchors=ANCHORS)
    hits, sampled = index.scan(b"\n".join([MANY[0]] * 3000 + [MANY[7], MANY[9]]), limit=50)
    assert sampled and {i for i, _ in hits} == {0, 7, 9}


def test_the_limit_is_what_the_agent_can_afford() -> None:
    assert literals.HIT_LIMIT <= 1000


def test_a_block_full_of_anchors_is_searched_whole_and_not_sampled() -> None:
    index = LiteralIndex(MANY, anchors=ANCHORS)
    fragment = next(a for a in ANCHORS if a not in (MANY[3],))
    block = (fragment + b"-") * 2000 + MANY[3] + b"\n" + MANY[3]
    hits, sampled = index.scan(block)
    assert not sampled and [i for i, _ in hits] == [3, 3]
