"""The operators' rows of the table in `turnstream.api.openapi.table`."""

from __future__ import annotations

from turnstream.api.admin.deployment import WorkerBody
from turnstream.api.admin.keys import NewKeyBody, RotateBody
from turnstream.api.admin.models import ModelBody
from turnstream.api.admin.params import StopBody
from turnstream.api.admin.schemas import (
    AgentList,
    EventPage,
    KeyList,
    KeyMade,
    KeyRevoked,
    ModelHeld,
    ModelList,
    Processes,
    SessionList,
    SessionsDeleted,
    Stats,
    TaskPage,
    TaskReplayed,
    TaskShown,
    TasksStopped,
    TaskStopped,
    WorkerOrdered,
)
from turnstream.api.admin.sessions import DeleteBody
from turnstream.api.admin.tasks import BASE, TASK
from turnstream.api.http.operation import BODY_ERRORS, ID, KEY_ERRORS, Json, Operation, Stream, parameter
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE
from turnstream.shared.errors import (
    BadCursor,
    BadRequest,
    BodyTooLarge,
    CursorGone,
    IdempotencyMismatch,
    InvalidBody,
    NoKey,
    NoModel,
    NoSession,
    NoTask,
    NotRotatable,
    NoWorker,
    Overloaded,
    SessionBusy,
    ShuttingDown,
    TooMany,
)
from turnstream.shared.names import NAME
from turnstream.shared.protocol import AgentResponse, AnyContent, Message

ADMIN_PARAMETERS: dict[str, Json] = {
    "status": parameter(
        "query",
        "status",
        "Statuses, separated by commas; `live` is queued, running and parked.",
        pattern="^(live|queued|running|parked|completed|failed|canceled)(,(live|queued|running|parked|completed|failed|canceled))*$",
        examples=["live", "running,parked"],
    ),
    "agent": parameter("query", "agent", "Of this agent only."),
    "of_owner": parameter("query", "owner", "Of this owner only."),
    "user": parameter("query", "user", "Of this user only."),
    "session": parameter("query", "session", "Of sessions of this name only."),
    "older_than": parameter(
        "query",
        "older_than",
        "Submitted so many seconds ago or longer.",
        type="number",
        minimum=0,
        maximum=31_536_000,
    ),
    "younger_than": parameter(
        "query",
        "younger_than",
        "Submitted at most so many seconds ago.",
        type="number",
        minimum=0,
        maximum=31_536_000,
    ),
    "worker": parameter("query", "worker", "Of those that this worker runs, or ran last, only."),
    "why": parameter("query", "why", "Of those only that ended with this code.", examples=["agent_failed"]),
    "of_tasks": parameter(
        "query",
        "search",
        "Only those with this in their ref, agent, user, worker, code or error, in any case.",
    ),
    "rows": parameter("query", "limit", "Rows wanted at most.", type="integer", minimum=1, maximum=200),
    "events": parameter("query", "limit", "Events wanted at most.", type="integer", minimum=1, maximum=500),
    "the_owner": parameter("query", "owner", "Whose sessions.", required=True, pattern=ID),
    "sessions": parameter("query", "limit", "Rows wanted at most.", type="integer", minimum=1, maximum=1000),
    "page": parameter(
        "query",
        "cursor",
        "What the page before gave as `next`.",
        pattern=f"^[0-9]{{1,13}}:{NAME}/{NAME}/{NAME}$",
        examples=["1760000000000:acme/s1/t1"],
    ),
    "ref_owner": parameter("path", "owner", "Whose task it is.", required=True, pattern=ID),
    "ref_session": parameter("path", "session", "Its session.", required=True, pattern=ID),
    "ref_task": parameter("path", "task", "The task.", required=True, pattern=ID),
    "key_id": parameter(
        "path", "id", "The key's id, as the list tells it.", required=True, pattern="^key_[0-9a-f]{12}$"
    ),
}

_REF = ("ref_owner", "ref_session", "ref_task")
_FILTERS = (
    "status",
    "agent",
    "of_owner",
    "user",
    "session",
    "older_than",
    "younger_than",
    "worker",
    "why",
    "of_tasks",
)

_EVENTS = Stream(
    dialects=(AGENTSCOPE,),
    frame="id: CURSOR\ndata: JSON\n\n",
    events={"": AgentResponse | Message | AnyContent},
)

ADMIN_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        ("GET",),
        BASE + "/tasks",
        "adminTasks",
        "A page of tasks, newest first. It may hold fewer than wanted and yet not be the last one.",
        {200: (TaskPage,)},
        KEY_ERRORS | {BadRequest},
        (*_FILTERS, "rows", "page"),
    ),
    Operation(("GET",), TASK, "adminTask", "One task.", {200: (TaskShown,)}, KEY_ERRORS | {NoTask}, _REF),
    Operation(
        ("GET",),
        TASK + "/events",
        "adminTaskEvents",
        "A page of the task's events, oldest first.",
        {200: (EventPage,)},
        KEY_ERRORS | {NoTask, BadCursor, BadRequest},
        (*_REF, "cursor", "events", "Last-Event-ID"),
    ),
    Operation(
        ("GET",),
        TASK + "/follow",
        "adminFollow",
        "The task's events as they come.",
        {200: (_EVENTS,)},
        KEY_ERRORS | {NoTask, BadCursor, NoSession, CursorGone, ShuttingDown, Overloaded, TooMany},
        (*_REF, "cursor", "Last-Event-ID"),
    ),
    Operation(
        ("POST",),
        TASK + "/stop",
        "adminStopTask",
        "End one task. When this answers, its end is in the log.",
        {200: (TaskStopped,)},
        KEY_ERRORS | {NoTask},
        _REF,
    ),
    Operation(
        ("POST",),
        TASK + "/replay",
        "adminReplay",
        "Say what the task's user said once more, as a new turn of the session, for its owner and with its agent. With the "
        "`Idempotency-Key` of an earlier request it is the turn that this one made.",
        {200: (TaskReplayed,)},
        KEY_ERRORS
        | {NoTask, NoSession, SessionBusy, CursorGone, BadRequest, IdempotencyMismatch}
        | {InvalidBody, BodyTooLarge, Overloaded, TooMany, ShuttingDown},
        (*_REF, "Idempotency-Key"),
    ),
    Operation(
        ("POST",),
        BASE + "/stop",
        "adminStop",
        "End several tasks: those that are named, or all live ones that fit every condition.",
        {200: (TasksStopped,)},
        KEY_ERRORS | BODY_ERRORS,
        (),
        StopBody,
        {
            "named": {"refs": ["acme/s1/t1", "acme/s2/t7"]},
            "a session": {"owner": "acme", "session": "s1"},
            "what waits too long": {"status": ["parked"], "older_than": 3600},
        },
    ),
    Operation(
        ("GET",),
        BASE + "/workers",
        "adminWorkers",
        "The processes that showed signs of life.",
        {200: (Processes,)},
        KEY_ERRORS,
    ),
    Operation(
        ("POST",),
        BASE + "/workers/pause",
        "adminPause",
        "Have a worker claim nothing more; what it runs goes on. An order ends with the worker's process; its row tells whether it was heard.",
        {200: (WorkerOrdered,)},
        KEY_ERRORS | BODY_ERRORS | {NoWorker},
        body=WorkerBody,
        examples={"worker": {"worker": "host-7-1a2b3c"}},
    ),
    Operation(
        ("POST",),
        BASE + "/workers/resume",
        "adminGoOn",
        "Have a paused worker go on.",
        {200: (WorkerOrdered,)},
        KEY_ERRORS | BODY_ERRORS | {NoWorker},
        body=WorkerBody,
        examples={"worker": {"worker": "host-7-1a2b3c"}},
    ),
    Operation(
        ("POST",),
        BASE + "/workers/drain",
        "adminDrain",
        "Have a worker end as if its process were told to: turns that do not end in time go on at other ones. Whatever keeps its process running starts it anew.",
        {200: (WorkerOrdered,)},
        KEY_ERRORS | BODY_ERRORS | {NoWorker},
        body=WorkerBody,
        examples={"worker": {"worker": "host-7-1a2b3c"}},
    ),
    Operation(
        ("GET",), BASE + "/stats", "adminStats", "The deployment in numbers.", {200: (Stats,)}, KEY_ERRORS
    ),
    Operation(
        ("GET",),
        BASE + "/agents",
        "adminAgents",
        "The agents that keys can select.",
        {200: (AgentList,)},
        KEY_ERRORS,
    ),
    Operation(
        ("GET",),
        BASE + "/models",
        "adminModels",
        "The models that agents have: which may be asked, which are held or left alone.",
        {200: (ModelList,)},
        KEY_ERRORS,
    ),
    Operation(
        ("POST",),
        BASE + "/models/hold",
        "adminHoldModel",
        "Let no request to a model begin, at any worker, from now on (within 5 s where a message to it was lost). Turns "
        "wait or use their agent's fallback; what it streams goes on.",
        {200: (ModelHeld,)},
        KEY_ERRORS | BODY_ERRORS | {NoModel},
        (),
        ModelBody,
        {"a model": {"model": "openai:gpt-5-mini"}},
    ),
    Operation(
        ("POST",),
        BASE + "/models/resume",
        "adminResumeModel",
        "End a hold, and close the model's breaker. Turns that wait come back within 30 seconds.",
        {200: (ModelHeld,)},
        KEY_ERRORS | BODY_ERRORS | {NoModel},
        (),
        ModelBody,
        {"a model": {"model": "openai:gpt-5-mini"}},
    ),
    Operation(
        ("GET",),
        BASE + "/sessions",
        "adminSessions",
        "What an owner's sessions hold, the largest first.",
        {200: (SessionList,)},
        KEY_ERRORS | {BadRequest},
        ("the_owner", "sessions"),
    ),
    Operation(
        ("POST",),
        BASE + "/sessions/delete",
        "adminDeleteSessions",
        "Delete an owner's sessions, one or all, with all that was said. Turns that are live end first.",
        {200: (SessionsDeleted,)},
        KEY_ERRORS | BODY_ERRORS | {NoSession, SessionBusy},
        (),
        DeleteBody,
        {"one": {"owner": "acme", "session": "s1"}, "all": {"owner": "acme"}},
    ),
    Operation(("GET",), BASE + "/keys", "adminKeys", "Every API key.", {200: (KeyList,)}, KEY_ERRORS),
    Operation(
        ("POST",),
        BASE + "/keys",
        "adminCreateKey",
        "Make an API key. It is shown once.",
        {200: (KeyMade,)},
        KEY_ERRORS | BODY_ERRORS,
        (),
        NewKeyBody,
        {
            "limited": {
                "owner": "acme",
                "agent": "demo",
                "rate": 60,
                "concurrency": 10,
                "followers": 100,
                "storage": 200_000_000,
                "days": 90,
            }
        },
    ),
    Operation(
        ("POST",),
        BASE + "/keys/{id}/rotate",
        "adminRotateKey",
        "Make a successor of an API key, which goes on working for some hours.",
        {200: (KeyMade,)},
        KEY_ERRORS | BODY_ERRORS | {NoKey, NotRotatable},
        ("key_id",),
        RotateBody,
        {"a day": {"hours": 24}},
    ),
    Operation(
        ("POST",),
        BASE + "/keys/{id}/revoke",
        "adminRevokeKey",
        "Forget an API key; it is refused everywhere within 10 seconds.",
        {200: (KeyRevoked,)},
        KEY_ERRORS | {NoKey},
        ("key_id",),
    ),
)
