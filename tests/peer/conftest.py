import pytest

from .gateway import Peer


@pytest.fixture(scope="module")
def shared_peer(tmp_path_factory):
    with Peer(tmp_path_factory.mktemp("peer")) as peer:
        yield peer


@pytest.fixture
def peer(shared_peer):
    """One peer a module, with its misbehaviour and its memory cleared for each test."""
    shared_peer.faults.reset()
    shared_peer.join_service.requests.clear()
    shared_peer.join_service.outcomes.clear()
    shared_peer.session_service.sessions.clear()
    shared_peer.session_service.refused.clear()
    shared_peer.frontend.connections.clear()
    yield shared_peer
    shared_peer.faults.reset()
    shared_peer.frontend.drop_connections()
