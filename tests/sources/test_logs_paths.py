from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.logs.paths import Kind, LogName, PodDir, container_of, container_ref, log_name, pod_dir


def test_a_pod_directory_names_namespace_pod_and_uid() -> None:
    assert pod_dir("llm_sglang-0_4cf8db2d-06a5-4e5b-9d0b-1b9c1d3e5f70") == PodDir(
        "llm", "sglang-0", "4cf8db2d-06a5-4e5b-9d0b-1b9c1d3e5f70"
    )


def test_a_static_pods_hash_stands_in_the_place_of_the_uid() -> None:
    found = pod_dir("kube-system_kube-apiserver-node-a_0d4b5ae2c1f0e6a2b9d3c4e5f6a7b8c9")
    assert found is not None and found.uid == "0d4b5ae2c1f0e6a2b9d3c4e5f6a7b8c9"


@pytest.mark.parametrize(
    "name",
    ["", "_", "__", "a_b", "a_b_", "_b_c", "a__c", "a_b_c_d", "..", "a_.._c", "a_b_c\n", "A_b_c", "a_<b>_c",
     "a_b_\udcff", "a_b/_c", "a_\x1b[31m_c", f"{'a' * 254}_b_c"],
)  # fmt: skip
def test_a_name_that_the_kubelet_would_not_make_is_no_pod(name: str) -> None:
    assert pod_dir(name) is None


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("0.log", LogName(0, "", Kind.LIVE)),
        ("12.log", LogName(12, "", Kind.LIVE)),
        ("0.log.20260720-091402", LogName(0, "20260720-091402", Kind.ROTATED)),
        ("0.log.20260720-091402.gz", LogName(0, "20260720-091402", Kind.COMPRESSED)),
        ("0.log.20260720-091402.tmp", LogName(0, "20260720-091402", Kind.TEMPORARY)),
        ("0.log.1", None),
        ("0.log.gz", None),
        ("x.log", None),
        ("-1.log", None),
        ("0.log\n", None),
        ("٣.log", None),
        ("9999999999.log", None),
        (".0.log.swp", None),
    ],
)
def test_a_log_files_name_is_taken_apart(name: str, parts: LogName | None) -> None:
    assert log_name(name) == parts


def test_names_sort_in_the_order_they_were_written() -> None:
    names = ["0.log.20260720-091402", "0.log.20260720-091412", "0.log", "1.log", "9.log", "10.log"]
    parts = [found for name in names if (found := log_name(name))]
    assert sorted(parts, key=lambda part: part.order) == parts and len(parts) == len(names)


def test_a_full_path_gives_the_container_instance() -> None:
    ref = container_of("/var/log/pods/llm_sglang-0_u1/main/3.log.20260720-091402")
    assert ref is not None
    assert (ref.namespace, ref.pod, ref.uid, ref.container, ref.restart) == ("llm", "sglang-0", "u1", "main", 3)
    assert ref.key == "llm/sglang-0/u1/main"


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_any_text_is_taken_without_an_exception(text: str) -> None:
    pod = pod_dir(text)
    assert pod is None or "_".join(pod) == text
    log_name(text)
    container_of(text)
    assert (ref := container_ref(PodDir("a", "b", "c"), text)) is None or ref.container == text
