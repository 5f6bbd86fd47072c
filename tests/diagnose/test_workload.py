"""Which containers run SGLang: what decides before what, as a table; and whose service and GPU it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnose.workload import Answer, has_gpu, runs_sglang, service_of
from agent.pods import DeviceHealth, Pod, PodContainer

YES, NO, OPEN = Answer.YES, Answer.NO, Answer.BY_CONTENT
WATCH, CONTAINER = "faultline.dev/watch", "faultline.dev/container"
LLMKUBE = {"inference.llmkube.dev/runtime": "sglang"}
LAUNCH = ("python3", "-m", "sglang.launch_server")
GPU = {"nvidia.com/gpu": "1"}


def container(name: str = "main", **more: object) -> PodContainer:
    return PodContainer(name=name, **more)  # type: ignore[arg-type]


def pod(
    *containers: PodContainer, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> Pod:
    return Pod(namespace="llm", name="p", uid="u", labels=labels or {}, annotations=annotations or {},
               containers=containers)  # fmt: skip


@pytest.mark.parametrize(
    ("one", "answer"),
    [
        (container(), OPEN),
        (container(command=LAUNCH), YES),
        (container(command=("python3",), args=("-m", "sglang.launch_server", "--port", "1")), YES),
        (container(args=("sglang", "serve", "--model-path", "x")), YES),
        (container(command=("/opt/venv/bin/sglang", "serve")), YES),
        (container(command=("sh", "-c", "exec python -m sglang.launch_server --tp 8")), YES),
        (container(command=("python3", "-m", "dynamo.sglang")), YES),
        (container(command=("python3", "-m", "sglang.srt.entrypoints.http_server")), YES),
        (container(command=("sglang", "generate")), OPEN),
        (container(command=("mysglang", "serve")), OPEN),
        (container(command=("python3", "-m", "sglang.launch_server_x")), OPEN),
        (container(command=("python3", "-m", "sglang.bench_serving")), OPEN),
        (container(command=("vllm", "serve", "sglang")), OPEN),
        (container(command=(" " * 70_000, *LAUNCH)), OPEN),
        (container(image="lmsysorg/sglang:v0.5.15"), YES),
        (container(image="lmsysorg/sglang@sha256:ab"), YES),
        (container(image="sglang"), YES),
        (container(image="registry:5000/a/sglang-rocm:1"), YES),
        (container(image="x", resolved_image="docker.io/lmsysorg/sglang:v1"), YES),
        (container(image="lmsysorg/sgl-model-gateway:1"), NO),
        (container(image="lmsysorg/sglang-router:1"), NO),
        (container(image="ghcr.io/x/smg:v1"), NO),
        (container(image="me/not-sglang:1"), OPEN),
        (container(image="sglang/tools:1"), OPEN),
        (container(image="nginx", resolved_image="nginx"), OPEN),
        # Routers run beside SGLang, from its image too.
        (container(image="lmsysorg/sglang:v1", command=("python3", "-m", "sglang_router.launch_router")), NO),
        (container(image="lmsysorg/sglang:v1", command=("python", "-m", "sglang.srt.disaggregation.mini_lb")), NO),
        (container(image="lmsysorg/sglang:v1", command=("smg", "launch")), NO),
        (container(image="lmsysorg/sglang:v1", args=("--name", "smgx")), YES),
        (container(image="x/sglang-router:v1", command=LAUNCH), YES),  # the command tells more than the image
        # An init container loads a model, from the same image and with the same words.
        (container(image="lmsysorg/sglang:v1", command=LAUNCH, init=True), OPEN),
        (container(command=("launch_router",), init=True), NO),
    ],
)
def test_what_command_and_image_tell(one: PodContainer, answer: Answer) -> None:
    found = runs_sglang(pod(one), one)
    assert found.answer is answer, found.why
    assert found.why


SGLANG, SIDE, ISTIO = container("sglang", image="x"), container("side", image="y"), container("istio-proxy")
LOADED = container("load", init=True)
WITH_GPU = container("worker", limits=GPU)


@pytest.mark.parametrize(
    ("labels", "containers", "yes"),
    [
        (LLMKUBE, (SGLANG, SIDE), "sglang"),
        (LLMKUBE, (SIDE,), ""),
        ({"inference.llmkube.dev/runtime": "vllm"}, (SGLANG,), ""),
        ({"engine": "sglang"}, (SIDE,), "side"),
        ({"engine": "vllm"}, (SIDE,), ""),
        ({"app.kubernetes.io/name": "sglang"}, (SIDE, ISTIO, LOADED), "side"),
        ({"app.kubernetes.io/component": "sglang"}, (WITH_GPU, SIDE), "worker"),
        ({"engine": "sglang"}, (SGLANG, SIDE), ""),  # two that it may mean: what they print decides
        ({"engine": "sglang"}, (WITH_GPU, container("w2", limits=GPU)), "worker w2"),
        ({"engine": "sglang"}, (ISTIO,), ""),
    ],
)
def test_which_container_a_label_of_the_pod_means(
    labels: dict[str, str], containers: tuple[PodContainer, ...], yes: str
) -> None:
    found = pod(*containers, labels=labels)
    assert " ".join(c.name for c in containers if runs_sglang(found, c).answer is YES) == yes
    assert not [c for c in containers if runs_sglang(found, c).answer is NO]


ENGINE = container("engine", command=LAUNCH)
ROUTER = container("router", command=("launch_router",))


@pytest.mark.parametrize(
    ("words", "name", "answer"),
    [
        ({WATCH: "true"}, "side", YES),
        ({WATCH: "True "}, "side", YES),
        ({WATCH: "true"}, "router", YES),  # the user's own word goes before all
        ({WATCH: "true"}, "istio-proxy", OPEN),
        ({WATCH: "true"}, "load", OPEN),
        ({WATCH: "false"}, "engine", NO),
        ({WATCH: "false"}, "istio-proxy", NO),
        ({WATCH: "maybe"}, "engine", YES),
        ({WATCH: ""}, "engine", YES),
        ({WATCH: "true", CONTAINER: "side"}, "side", YES),
        ({WATCH: "true", CONTAINER: " side "}, "side", YES),
        ({WATCH: "true", CONTAINER: "side"}, "engine", NO),
        ({WATCH: "true", CONTAINER: "istio-proxy"}, "istio-proxy", YES),
        ({WATCH: "true", CONTAINER: "load"}, "load", YES),
        ({WATCH: "true", CONTAINER: "typo"}, "engine", YES),  # names none that is there: as if nothing was said
        ({WATCH: "true", CONTAINER: "typo"}, "side", OPEN),
        ({WATCH: "false", CONTAINER: "side"}, "side", NO),
        ({WATCH: "false", CONTAINER: "side"}, "engine", YES),
        ({CONTAINER: "side"}, "engine", YES),
        ({}, "router", NO),
    ],
)
@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_the_users_own_word(words: dict[str, str], name: str, answer: Answer, place: str) -> None:
    found = pod(LOADED, ENGINE, SIDE, ROUTER, ISTIO, **{place: words})
    one = found.container(name)
    assert one is not None
    assert runs_sglang(found, one).answer is answer


def test_a_label_goes_before_an_annotation() -> None:
    found = pod(ENGINE, labels={WATCH: "false"}, annotations={WATCH: "true"})
    assert runs_sglang(found, ENGINE).answer is NO


@pytest.mark.parametrize(
    ("one", "gpu"),
    [
        (container(), False),
        (container(limits={"cpu": "1", "memory": "1Gi"}), False),
        (container(limits={"nvidia.com/gpu": "0"}), False),
        (container(limits={"nvidia.com/gpu": ""}), False),
        (container(limits={"nvidia.com/gpu": "8"}), True),
        (container(limits={"nvidia.com/mig-1g.10gb": "1"}), True),
        (container(limits={"nvidia.com/gpu.shared": "1"}), True),
        (container(limits={"amd.com/gpu": "1"}), False),
        (container(claims=("gpu",)), True),
        (container(devices=(DeviceHealth(resource="nvidia.com/gpu", id="GPU-1", health="Healthy"),)), True),
        (container(devices=(DeviceHealth(resource="claim:nic", id="dra.net/n/nic0", health="Healthy"),)), False),
    ],
)
def test_who_asks_for_a_gpu(one: PodContainer, gpu: bool) -> None:
    assert has_gpu(one) is gpu


@pytest.mark.parametrize(
    ("labels", "namespace", "name"),
    [
        ({"inference.llmkube.dev/service": "chat"}, "llm", "chat"),
        ({"inference.llmkube.dev/service": ""}, "llm", None),
        ({"inference.llmkube.dev/service": "chat"}, "", None),
        ({"serving.kserve.io/inferenceservice": "chat"}, "llm", None),
        ({}, "llm", None),
    ],
)
def test_whose_service_it_is(labels: dict[str, str], namespace: str, name: str | None) -> None:
    found = service_of(Pod(namespace=namespace, name="p", uid="u", labels=labels))
    assert (None if found is None else found.name) == name
    if found is not None:
        assert (found.kind, found.group, found.api_version, found.namespace) == (
            "InferenceService", "inference.llmkube.dev", "inference.llmkube.dev/v1alpha1", namespace,
        )  # fmt: skip


@given(st.lists(st.text(max_size=20), max_size=6), st.text(max_size=40), st.dictionaries(st.text(), st.text()))
def test_any_words_have_an_answer(words: list[str], image: str, labels: dict[str, str]) -> None:
    one = container(command=tuple(words), image=image)
    assert runs_sglang(pod(one, labels=labels), one).answer in Answer
