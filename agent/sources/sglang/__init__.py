"""Asks a running SGLang server what it runs and how fast. Never with side effects, never with a credential."""

from __future__ import annotations

from agent.sources.sglang.client import Answer, Server, ServerClient
from agent.sources.sglang.source import Answered, ServerSource

__all__ = ["Answer", "Answered", "Server", "ServerClient", "ServerSource"]
