from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model import ContainerRef
from agent.sources.kubelet.addresses import PodAddresses, address_in

HOSTS = """# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
10.244.1.17\tchat-0.chat.serving.svc.cluster.local\tchat-0

# Entries added by HostAliases.
10.0.0.1\tchat-0\tother
"""
UID = "0c6f1a52-4d1b-4a57-9c1e-000000000001"


def test_the_pods_own_line_is_taken() -> None:
    assert address_in(HOSTS, pod="chat-0") == "10.244.1.17"


def test_what_the_pods_author_added_is_not_believed() -> None:
    assert address_in(HOSTS, pod="other") is None


def test_a_pod_on_the_hosts_network_has_no_address_of_its_own() -> None:
    text = "# Kubernetes-managed hosts file (host network).\n10.0.0.5\tchat-0\n"
    assert address_in(text, pod="chat-0") is None


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1", "224.0.0.1", "0.0.0.0", "nonsense"])
def test_addresses_that_are_no_pods_are_not_given(address: str) -> None:
    assert address_in(f"# Kubernetes-managed hosts file.\n{address}\tchat-0\n", pod="chat-0") is None


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    address_in("# Kubernetes-managed hosts file.\n" + text, pod="p")


def test_a_file_is_looked_up_by_the_pods_uid_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / UID).mkdir()
    (tmp_path / UID / "etc-hosts").write_text(HOSTS)
    addresses = PodAddresses(tmp_path)
    assert addresses(ContainerRef(pod="chat-0", uid=UID)) == "10.244.1.17"
    assert addresses(ContainerRef(pod="chat-0", uid="../" + UID)) is None
    assert addresses(ContainerRef(pod="chat-0", uid=UID.replace("1", "2"))) is None
