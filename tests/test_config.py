"""Settings: where a value comes from, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import Choice, ConfigError, SelectSettings, changed, describe, keys, load_settings
from agent.model import ContainerRef


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return file


def refused(file: Path | None = None, *, environ: dict[str, str] | None = None, **overrides: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environ=environ or {}, overrides={k.replace("__", "."): v for k, v in overrides.items()})
    return str(caught.value)


def test_without_any_input_every_setting_is_its_default() -> None:
    loaded = load_settings(environ={})
    assert loaded.settings.http.port == 9753
    assert loaded.settings.mode == "observe"
    assert loaded.settings.kernel.accept_user_records is False
    assert {row.origin for row in describe(loaded)} == {"default"}


def test_the_file_is_overridden_by_the_environment_and_that_by_flags(tmp_path: Path) -> None:
    file = written(tmp_path, "http: {port: 1001, address: 127.0.0.1}\nmode: taint\nlog: {level: debug}\n")
    loaded = load_settings(
        file,
        environ={"FAULTLINE_HTTP_PORT": "1002", "FAULTLINE_MODE": "device", "PATH": "/bin"},
        overrides={"http.port": 1003, "log.format": None},
    )
    rows = {row.key: (row.value, row.origin) for row in describe(loaded)}
    assert rows["http.port"] == (1003, "flag")
    assert rows["mode"] == ("device", "environment")
    assert rows["log.level"] == ("debug", "file")
    assert rows["http.address"] == ("127.0.0.1", "file")
    assert rows["log.format"] == ("text", "default")


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "---\n"])
def test_an_empty_file_is_all_defaults(tmp_path: Path, text: str) -> None:
    assert load_settings(written(tmp_path, text), environ={}).settings == load_settings(environ={}).settings


def test_a_list_in_the_environment_is_comma_separated_or_json() -> None:
    plain = load_settings(environ={"FAULTLINE_SELECT_CONTAINERS": "sglang, llm-*,"}).settings
    assert plain.select.containers == ("sglang", "llm-*")
    as_json = load_settings(environ={"FAULTLINE_RULES_DIRS": '["/a,b"]'}).settings
    assert as_json.rules_dirs == ("/a,b",)
    assert load_settings(environ={"FAULTLINE_SELECT_IMAGES": ""}).settings.select.images == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http:\n  prot: 1\n", "config.yaml:2: http.prot: no such setting; did you mean http.port?"),
        ("mode: taint\nhtpp: {port: 1}\n", "config.yaml:2: htpp: no such setting"),
        ("mode: taint\nhttp:\n  port: high\n", "config.yaml:3: http.port: Expected `int`, got `str`"),
        ("http:\n  port: 70000\n", "config.yaml:2: http.port: Expected `int` <= 65535"),
        ("mode: evict\n", "config.yaml:1: mode: Invalid enum value 'evict'"),
        ("http:\n", "config.yaml:1: http: Expected `object`, got `null`"),
        ("select: {labels: ['a b']}\n", "config.yaml:1: select.labels.0: Expected `str` matching regex"),
        ("- http\n", "config.yaml: Expected `object`, got `array`"),
        ("a: [1\n", "not valid YAML"),
        ("logs: {grace_seconds: .nan}\n", "config.yaml:1: logs.grace_seconds: Expected `float` >= 0.0"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_line_and_key(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(written(tmp_path, text))


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.yaml").endswith("none.yaml: cannot be read: No such file or directory")
    assert "cannot be read: Is a directory" in refused(tmp_path)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"FAULTLINE_HTTP_PORT": "x"}, "FAULTLINE_HTTP_PORT: Expected `int`, got `str` (given: 'x')"),
        ({"FAULTLINE_MDOE": "taint"}, "FAULTLINE_MDOE: no such setting; did you mean FAULTLINE_MODE?"),
        ({"FAULTLINE_RULES_DIRS": "[1"}, "FAULTLINE_RULES_DIRS: not a JSON list"),
        ({"FAULTLINE_KERNEL_ACCEPT_USER_RECORDS": "perhaps"}, "FAULTLINE_KERNEL_ACCEPT_USER_RECORDS: Expected `bool`"),
        (
            {"FAULTLINE_CORRELATION_WINDOW_SECONDS": "5"},
            "FAULTLINE_CORRELATION_WINDOW_SECONDS: correlation.window_seconds: settle_seconds (10) must not exceed",
        ),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(environ: dict[str, str], says: str) -> None:
    assert says in refused(environ=environ)


def test_a_mistake_in_a_flag_names_the_flag() -> None:
    assert refused(http__port=-1).startswith("--http-port: Expected `int` >= 0")
    assert refused(no__such=1) == "no.such: no such setting"


def test_what_the_kubelet_sets_for_a_service_named_faultline_is_no_setting() -> None:
    environ = {
        "FAULTLINE_SERVICE_HOST": "10.0.0.1",
        "FAULTLINE_SERVICE_PORT": "9753",
        "FAULTLINE_SERVICE_PORT_METRICS": "9753",
        "FAULTLINE_PORT": "tcp://10.0.0.1:9753",
        "FAULTLINE_PORT_9753_TCP": "tcp://10.0.0.1:9753",
        "FAULTLINE_PORT_9753_TCP_ADDR": "10.0.0.1",
        "FAULTLINE_HTTP_PORT": "tcp://10.0.0.2:9753",
        "FAULTLINE_HTTP_PORT_9753_TCP_PROTO": "tcp",
        "FAULTLINE_CONFIG": "/etc/faultline/config.yaml",
    }
    assert load_settings(environ=environ).settings == load_settings(environ={}).settings


def test_every_setting_is_described_and_has_its_own_variable_and_flag() -> None:
    for key in keys():
        assert len(key.description) > 20, key.name
    assert len({key.variable for key in keys()}) == len({key.flag for key in keys()}) == len(keys())
    assert next(k for k in keys() if k.name == "kernel.accept_user_records").variable == (
        "FAULTLINE_KERNEL_ACCEPT_USER_RECORDS"
    )


def test_a_reload_tells_what_it_applies_and_what_needs_a_restart() -> None:
    old = load_settings(environ={}).settings
    new = load_settings(environ={"FAULTLINE_LOG_LEVEL": "debug", "FAULTLINE_HTTP_PORT": "1"}).settings
    assert changed(old, new) == (("log.level",), ("http.port",))
    assert changed(old, old) == ((), ())


def container(name: str = "app", namespace: str = "team") -> ContainerRef:
    return ContainerRef(namespace=namespace, pod="p", uid="u", container=name)


def test_a_container_is_chosen_by_name_image_or_label_else_by_content() -> None:
    select = SelectSettings()
    assert select.choose(container("sglang")) is Choice.FOLLOW
    assert select.choose(container(), image="docker.io/lmsysorg/sglang:v0.5.15") is Choice.FOLLOW
    assert select.choose(container(), labels={"engine": "sglang"}) is Choice.FOLLOW
    assert select.choose(container(), labels={"engine": "vllm"}) is Choice.BY_CONTENT
    assert select.choose(container()) is Choice.BY_CONTENT


def test_what_is_excluded_is_never_read() -> None:
    select = SelectSettings(exclude_namespaces=("kube-*",), namespaces=("team", "kube-system"), all=True)
    assert select.choose(container("sglang", "kube-system")) is Choice.IGNORE
    assert select.choose(container("sglang", "other")) is Choice.IGNORE
    assert select.choose(container("istio-proxy")) is Choice.IGNORE
    assert select.choose(container(), image="x/sglang-router:1") is Choice.IGNORE
    assert select.choose(container()) is Choice.FOLLOW
    assert SelectSettings(content=False).choose(container()) is Choice.IGNORE


@given(st.binary(max_size=200) | st.text(max_size=80).map(str.encode))
def test_any_bytes_as_a_file_are_settings_or_a_config_error(text: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(text)
        file.flush()
        try:
            load_settings(Path(file.name), environ={})
        except ConfigError as error:
            assert file.name in str(error)


@given(st.sampled_from([k.variable for k in keys()]), st.text(max_size=60))
def test_any_text_in_a_variable_is_a_value_or_a_config_error(variable: str, text: str) -> None:
    try:
        load_settings(environ={variable: text})
    except ConfigError as error:
        assert variable in str(error)
