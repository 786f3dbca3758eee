"""Each module's test is found by its name: in the mirrored folder here, or where this list says."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
FOLDERS = ("api", "shared", "turnstream", "worker")

# Modules that are tested through the public surface, and the tests that fail first when they break.
ELSEWHERE = {
    "api/access/auth": "admin/test_keys",
    "api/admin/deployment": "admin/test_deployment",
    "api/admin/events": "admin/test_tasks",
    "api/admin/keys": "admin/test_keys",
    "api/admin/models": "behaviour/test_model_gate",
    "api/admin/params": "admin/test_tasks",
    "api/admin/replay": "admin/test_tasks",
    "api/admin/sessions": "admin/test_storage",
    "api/admin/tasks": "admin/test_tasks",
    "api/app": "security/test_front_end",
    "api/http/body": "behaviour/test_bad_clients",
    "api/http/cors": "security/test_cors",
    "api/http/error_shape": "behaviour/test_new_protocol",
    "api/http/operation": "unit/api/openapi/test_document",
    "api/http/wire_protocol": "behaviour/test_new_protocol",
    "api/openapi/admin_table": "unit/api/openapi/test_document",
    "api/openapi/table": "unit/api/openapi/test_document",
    "api/operators/conversations": "behaviour/test_conversations",
    "api/operators/health": "processes/test_broker_away",
    "api/operators/metrics": "admin/test_metrics",
    "api/protocols/a2a/card": "behaviour/a2a/test_tasks",
    "api/protocols/a2a/errors": "behaviour/a2a/test_refusals",
    "api/protocols/a2a/operations": "behaviour/a2a/test_tasks",
    "api/protocols/a2a/parts": "behaviour/a2a/test_tasks",
    "api/protocols/a2a/protocol": "unit/api/openapi/test_document",
    "api/protocols/a2a/requests": "behaviour/a2a/test_refusals",
    "api/protocols/a2a/routes": "behaviour/a2a/test_refusals",
    "api/protocols/a2a/task_encoder": "behaviour/a2a/test_hard_times",
    "api/protocols/ag_ui/copilotkit": "behaviour/ag_ui/test_runs",
    "api/protocols/ag_ui/dispatches": "unit/api/protocols/ag_ui/test_run_stream",
    "api/protocols/ag_ui/info": "behaviour/ag_ui/test_runs",
    "api/protocols/ag_ui/protocol": "unit/api/openapi/test_document",
    "api/protocols/ag_ui/requests": "behaviour/ag_ui/test_refusals",
    "api/protocols/ag_ui/routes": "behaviour/ag_ui/test_runs",
    "api/protocols/ag_ui/runs": "behaviour/ag_ui/test_runs",
    "api/protocols/ag_ui/thread": "behaviour/ag_ui/test_hard_times",
    "api/protocols/agent_api/protocol": "unit/api/openapi/test_document",
    "api/protocols/agent_api/routes": "behaviour/test_one_chat",
    "api/protocols/ai_sdk/messages": "behaviour/ai_sdk/test_ai_sdk",
    "api/protocols/ai_sdk/protocol": "unit/api/openapi/test_document",
    "api/protocols/ai_sdk/requests": "behaviour/ai_sdk/test_ai_sdk",
    "api/protocols/ai_sdk/routes": "behaviour/ai_sdk/test_ai_sdk",
    "api/protocols/liteagent/envelope": "unit/api/protocols/liteagent/test_frames",
    "api/protocols/liteagent/protocol": "unit/api/openapi/test_document",
    "api/protocols/liteagent/routes": "behaviour/test_liteagent",
    "api/protocols/openai/chat_requests": "behaviour/openai/test_chat_completions",
    "api/protocols/openai/chat_routes": "behaviour/openai/test_chat_completions",
    "api/protocols/openai/chat_stream": "unit/api/protocols/openai/test_streams",
    "api/protocols/openai/conversation_routes": "behaviour/openai/test_calls",
    "api/protocols/openai/errors": "behaviour/openai/test_refusals",
    "api/protocols/openai/input_items": "behaviour/openai/test_calls",
    "api/protocols/openai/listing": "behaviour/openai/test_responses",
    "api/protocols/openai/model_routes": "behaviour/openai/test_several_agents",
    "api/protocols/openai/not_served": "behaviour/openai/test_refusals",
    "api/protocols/openai/overridden": "behaviour/openai/test_refusals",
    "api/protocols/openai/protocol": "unit/api/openapi/test_document",
    "api/protocols/openai/resource": "behaviour/openai/test_responses",
    "api/protocols/openai/response_requests": "behaviour/openai/test_refusals",
    "api/protocols/openai/response_routes": "behaviour/openai/test_responses",
    "api/protocols/openai/response_stream": "unit/api/protocols/openai/test_streams",
    "api/protocols/openai/routes": "behaviour/openai/test_responses",
    "api/server": "behaviour/test_bad_connections",
    "api/streaming/dialect": "behaviour/test_new_protocol",
    "api/streaming/feed": "unit/api/streaming/test_hub",
    "api/streaming/leaving": "behaviour/openai/test_chat_completions",
    "api/streaming/reading": "behaviour/test_long_after",
    "api/streaming/sse": "behaviour/test_bad_clients",
    "api/streaming/start_position": "behaviour/test_long_after",
    "api/streaming/whole": "behaviour/openai/test_responses",
    "api/turns/answers": "behaviour/openai/test_calls",
    "api/turns/branches": "behaviour/ai_sdk/test_ai_sdk",
    "api/turns/callbacks": "behaviour/test_parking",
    "api/turns/delete": "behaviour/test_conversations",
    "api/turns/finding": "behaviour/openai/test_calls",
    "api/turns/fork": "behaviour/test_forks",
    "api/turns/messages": "behaviour/openai/test_calls",
    "api/turns/overrides": "behaviour/test_overrides",
    "api/turns/posted": "behaviour/openai/test_refusals",
    "api/turns/stop": "behaviour/test_stopping",
    "api/turns/submit": "behaviour/test_order",
    "shared/agents/config": "unit/turnstream/test_agents_check",
    "shared/api_keys": "unit/turnstream/test_keys_command",
    "shared/broker/keys": "deploy/test_broker",
    "shared/broker/pipeline": "processes/test_slow_link",
    "shared/errors": "behaviour/test_refusals",
    "shared/listening": "processes/test_supervisor",
    "shared/protocol/content_builder": "unit/shared/protocol/test_builder",
    "shared/session/agent_tasks": "behaviour/a2a/test_tasks",
    "shared/session/cancellation": "unit/worker/test_signals",
    "shared/session/deployment_stats": "admin/test_deployment",
    "shared/session/model_calls": "behaviour/test_model_calls",
    "shared/session/outcomes": "unit/shared/broker/test_scripts",
    "shared/session/session_list": "behaviour/test_conversations",
    "shared/session/storage": "admin/test_storage",
    "shared/session/task_list": "admin/test_tasks",
    "shared/session/webhooks": "behaviour/a2a/test_push",
    "shared/settings": "docs/test_operations",
    "shared/tracing": "admin/test_tracing",
    "shared/webhooks": "behaviour/a2a/test_push",
    "shared/without_rich": "unit/api/test_no_agent_library",
    "shared/worker_orders": "admin/test_deployment",
    "turnstream/admin": "unit/turnstream/test_tasks_tail",
    "turnstream/chat/commands": "unit/turnstream/test_chat_command",
    "turnstream/chat/conversation": "unit/turnstream/test_chat_command",
    "turnstream/chat/editor": "unit/turnstream/test_chat_command",
    "turnstream/chat/plain": "unit/turnstream/test_chat_command",
    "turnstream/chat/recent": "unit/turnstream/test_chat_command",
    "turnstream/chat/screen": "unit/turnstream/test_chat_command",
    "turnstream/chat/telling": "unit/turnstream/test_chat_command",
    "turnstream/cli": "unit/turnstream/test_serve",
    "turnstream/client/calls": "unit/turnstream/client/test_functions",
    "turnstream/client/client": "unit/turnstream/client/test_chat",
    "turnstream/client/connection": "unit/turnstream/client/test_resuming",
    "turnstream/client/events": "unit/turnstream/client/test_chat",
    "turnstream/client/following": "unit/turnstream/client/test_resuming",
    "turnstream/client/reply": "unit/turnstream/client/test_chat",
    "turnstream/client/retrying": "unit/turnstream/client/test_errors",
    "turnstream/client/session": "unit/turnstream/client/test_chat",
    "turnstream/client/speech": "unit/turnstream/client/test_chat",
    "turnstream/dev_keys": "unit/turnstream/test_serve",
    "turnstream/doctor/broker": "unit/turnstream/test_doctor",
    "turnstream/doctor/command": "unit/turnstream/test_doctor",
    "turnstream/doctor/findings": "unit/turnstream/test_doctor",
    "turnstream/doctor/front_end": "unit/turnstream/test_doctor",
    "turnstream/doctor/nodes": "processes/test_cluster_doctor",
    "turnstream/doctor/server": "unit/turnstream/test_doctor",
    "turnstream/doctor/sentinels": "processes/test_sentinel",
    "turnstream/logs": "admin/test_logs",
    "turnstream/models": "behaviour/test_model_gate",
    "turnstream/process": "processes/test_ending",
    "turnstream/reloading": "unit/turnstream/test_serve",
    "turnstream/roles": "processes/test_scaled",
    "turnstream/new_project/client": "unit/turnstream/test_project",
    "turnstream/new_project/conftest": "unit/turnstream/test_project",
    "turnstream/new_project/shop": "unit/turnstream/test_project",
    "turnstream/new_project/test_shop": "unit/turnstream/test_project",
    "turnstream/sessions": "admin/test_storage",
    "worker/agent_versions": "behaviour/test_agent_versions",
    "turnstream/testing/plugin": "unit/turnstream/test_project",
    "turnstream/testing/record": "unit/turnstream/testing/test_deployment",
    "turnstream/testing/script": "unit/turnstream/testing/test_deployment",
    "turnstream/testing/turn": "unit/turnstream/testing/test_deployment",
    "worker/agents/agent_run": "behaviour/test_real_models",
    "worker/agents/background": "behaviour/test_background",
    "worker/agents/calls": "behaviour/test_effects",
    "worker/agents/coded_agent": "behaviour/test_coded_agents",
    "worker/agents/demo": "behaviour/test_one_chat",
    "worker/agents/delta_listener": "unit/worker/agents/test_openai_stream",
    "worker/agents/failures": "behaviour/test_model_failures",
    "worker/agents/library_tasks": "behaviour/test_cancelled_starts",
    "worker/agents/model_gate": "behaviour/test_model_gate",
    "worker/agents/models": "behaviour/test_real_models",
    "worker/agents/reflection": "behaviour/test_reflection",
    "worker/agents/registry": "unit/turnstream/test_agents_check",
    "worker/agents/stream_end": "unit/worker/agents/test_openai_stream",
    "worker/agents/structured_output": "behaviour/test_structured_output",
    "worker/agents/tools/approval": "behaviour/test_real_models",
    "worker/agents/tools/client": "behaviour/test_real_models",
    "worker/agents/tools/effects": "behaviour/test_effects",
    "worker/agents/tools/mcp": "behaviour/test_mcp",
    "worker/agents/tools/mcp_connection": "behaviour/test_mcp",
    "worker/agents/tools/mcp_stderr": "behaviour/test_mcp_stderr",
    "worker/agents/tools/results": "behaviour/test_misbehaving_tools",
    "worker/agents/tools/server": "behaviour/test_misbehaving_tools",
    "worker/agents/tools/subagents": "behaviour/test_dispatch",
    "worker/agents/tools/threads": "behaviour/test_deadlines",
    "worker/health_server": "admin/test_metrics",
    "worker/live_list": "admin/test_tasks",
    "worker/recall": "processes/test_lost_hints",
    "worker/runner": "unit/worker/test_parting",
    "worker/turn": "behaviour/test_coded_agents",
    "worker/webhooks": "processes/test_webhooks",
    "worker/worker": "processes/test_ending",
}

# Modules that do nothing by themselves.
MODELS = "fields of JSON bodies; `unit/api/openapi/test_document` holds every route's answers to them"
PROTOCOL = "fields of the Agent API's events; `unit/shared/protocol` holds all of them to the specification"
NONE = {
    "api/admin/schemas": MODELS,
    "api/http/schemas": MODELS,
    "api/operators/schemas": MODELS,
    "api/protocols/ag_ui/schemas": MODELS,
    "api/protocols/liteagent/schemas": MODELS,
    "api/protocols/a2a/schemas": MODELS,
    "api/protocols/openai/schemas": MODELS,
    "api/protocols/ai_sdk/schemas": MODELS,
    "api/services": "makes one of each, and keeps them; a mistake fails every test with a front end",
    "shared/protocol/base": PROTOCOL,
    "shared/protocol/content": PROTOCOL,
    "shared/protocol/enums": PROTOCOL,
    "shared/protocol/error": PROTOCOL,
    "shared/protocol/event": PROTOCOL,
    "shared/protocol/message": PROTOCOL,
    "shared/protocol/response": PROTOCOL,
    "shared/protocol/tools": PROTOCOL,
    "shared/session/status": "the names of the states",
    "shared/version": "one constant",
    "worker/agents/run_outcome": "four dataclasses that the runner tells apart",
}


def modules() -> list[str]:
    """Every module but the packages' own and what `python -m` starts."""
    return sorted(
        str(path.relative_to(ROOT).with_suffix(""))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if path.stem not in {"__init__", "__main__"} and not _linked(path)
    )


def _linked(path: Path) -> bool:
    """Whether it is below one of the links of `turnstream/`, and so there twice."""
    return any((ROOT / parent).is_symlink() for parent in path.relative_to(ROOT).parents)


def mirrored(module: str) -> bool:
    """Whether `test_<module>.py` is in the mirrored folder, or several that begin with its name."""
    place = TESTS / "unit" / module
    return (place.parent / f"test_{place.name}.py").exists() or any(
        place.parent.glob(f"test_{place.name}_*.py")
    )


def test_every_module_has_its_test() -> None:
    """For a new module write `tests/unit/<folder>/test_<module>.py`, or name here what tests it."""
    missing = [name for name in modules() if not mirrored(name) and name not in {**ELSEWHERE, **NONE}]
    assert not missing


def test_the_list_is_true() -> None:
    """It names what is there, each once, and no module that has a test of its name."""
    there = set(modules())
    assert len(there) > 100
    assert not [name for name in (*ELSEWHERE, *NONE) if name not in there or mirrored(name)]
    assert not ELSEWHERE.keys() & NONE.keys()
    assert not [test for test in ELSEWHERE.values() if not (TESTS / f"{test}.py").exists()]
