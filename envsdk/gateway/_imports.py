"""Import of exchanges that another proxy or server logged: `from_requests`.

The contexts are recognized by what the requests mean, as in the gateway itself. The tokens are those of the log: each
step's delta is computed from its logged prompt and what its context held.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast, get_args

from ..errors import ConfigError, InvalidRecord
from ..limits import StopReason
from ..messages import Message
from ..rendering.renderer import Renderer
from ..trainers._log_fields import LARGEST_ID, read_renderer, read_vocab_size
from ..trainers._logged import Imported as Imported
from ..trainers._logged import ImportNote as ImportNote
from ..trainers._logged_texts import TextReplies
from ..trainers.atif import from_atif as from_atif
from ..trajectories._trajectory import Status
from ._conversations import Conversations
from ._logged_session import LoggedSession
from ._records import PROTOCOLS, RecordReader, with_unique_call_ids


def from_requests(
    records: Iterable[Mapping[str, Any]],
    *,
    renderer: "str | Renderer | None" = None,
    tokenizer: Any = None,
    protocol: str | None = None,
    reward: float | Mapping[str, float] | None = None,
    temperature: float = 1.0,
    role_of: Callable[[Sequence[Message]], str | None] | None = None,
    trainable_roles: Collection[str] | None = None,
    id: str = "imported",
    env: str = "imported",
    group_id: str | None = None,
    status: Status = "terminated",
    error: str | None = None,
    vocab_size: int = 0,
) -> Imported:
    """Make a trajectory from the exchanges of one session, as a proxy or an inference server logged them.

    Requests are recognized by what they mean, like those of a program at the gateway: what continues which context,
    what the program changed, what a sub-agent is. The tokens of each prompt are the logged ones. A prompt that begins
    with all that its context held extends it. Otherwise the break is declared: `edit` if the program changed messages,
    tools or the system message; `thinking_stripped` if only the reasoning of earlier replies is gone; `template` if the
    server rendered the same messages differently; `undeclared` if a reply has other tokens than were sampled, which
    mostly means that its text was tokenized again.

    A record is a mapping with these keys:

    - `request`: the parsed body of the request: Chat Completions, Responses, or Anthropic Messages.
    - `response`: the parsed body of the response; or, of one that was streamed, the list of its parsed events: the
      chunks of Chat Completions, the events of Responses or Anthropic Messages. A record whose response is None, an
      `error`, or a stream that ends before the reply does is left out.
    - `protocol`: `"chat"`, `"responses"` or `"anthropic"`. Optional: a request with `input` is `responses`, a response
      with `content`, or events with `type`, are `anthropic`, and anything else is `chat`.
    - `headers`: the headers of the request, of which `x-envsdk-context` and `x-envsdk-role` count. Optional.
    - `reward`: what the reply earned, a number or numbers by name. Optional.
    - `policy_version`: the version of the weights. Optional.

    Token ids are read where vLLM (`return_token_ids`), SGLang (`return_prompt_token_ids`, `return_meta_info`), LiteLLM,
    agent-lightning and NeMo Gym put them. Log-probabilities have to be those of the distribution that was sampled from:
    vLLM's are, with `--logprobs-mode processed_logprobs`.

    Images are read as the gateway reads them: `data:` URLs, and base64 in Anthropic's form. In a logged prompt, they
    are at the placeholders that the renderer's processor makes.

    A reply without the ids of its prompt and its tokens cannot be a step. It becomes supervised samples if a renderer
    is given, and a note in any case.

    Args:
        records: The records of one session, each after those whose replies it contains.
        renderer: The renderer of the model, or its name. It makes the supervised samples, and its tokenizer identifies
            the vocabulary.
        tokenizer: What `load_tokenizer` accepts, for a renderer that is given by its name.
        protocol: The protocol of all records that name none.
        reward: The reward of the whole session, which counts for the last step. None if the records have rewards.
        temperature: The sampling temperature of requests that name none.
        role_of: Returns the role of a new context, given its messages; None for the built-in rule.
        trainable_roles: The roles whose contexts are trained; None trains all.
        id: The id of the trajectory.
        env: The name of what the log comes from.
        group_id: The id that sessions of the same task share.
        status: How the session ended. With `"error"`, the trajectory gives no samples.
        error: What failed. The status is then `"error"`.
        vocab_size: The size of the vocabulary, if there is no renderer. Token ids must be smaller. 0 if it is unknown.

    Raises:
        InvalidRecord: If a record is damaged; the message names the record and the field. Or if a logged prompt has
            other placeholders of images than the renderer's processor makes. Or if no reply has token ids,
            and there is no renderer for supervised samples.
        ConfigError: If another argument is invalid.
    """
    made = read_renderer(renderer, tokenizer)
    size = read_vocab_size(vocab_size, made)
    _check_options(protocol, temperature, status)
    reader = RecordReader(protocol)
    if isinstance(records, (str, bytes, Mapping)) or not isinstance(records, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(cast("Any", records)).__name__
        raise InvalidRecord(f"records is a {kind}; expected the records of one session, in order")
    exchanges, renamed = with_unique_call_ids([reader.read(record, index) for index, record in enumerate(records)])
    texts = TextReplies(made, id)
    session = LoggedSession(Conversations(role_of), texts, trainable_roles, size, temperature, renamed)
    for exchange in exchanges:
        session.add(exchange)
    session.end()
    session.writer.earn_whole(reward)
    texts.check(has_steps=bool(session.writer.steps))
    is_failed = error is not None or status == "error"
    trajectory = session.writer.trajectory(
        id=id,
        env=env,
        seed=None,
        status="error" if is_failed else status,
        stop_reason=str(StopReason.ERROR if is_failed else StopReason(status)),
        renderer={} if made is None else made.specification(),
        renderer_chosen_because="" if made is None else made.chosen_because,
        tokenizer="" if made is None else made.tokenizer.fingerprint,
        vocab_size=size,
        group_id=group_id,
        error=error,
    )
    return Imported(trajectory, texts.samples, (*session.notes, *texts.notes))


def _check_options(protocol: Any, temperature: Any, status: Any) -> None:
    if protocol is not None and protocol not in PROTOCOLS:
        raise ConfigError(f"protocol is {protocol!r:.80}; expected one of {PROTOCOLS}, or None to recognize it")
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature < LARGEST_ID:
        raise ConfigError(f"temperature is {temperature!r:.80}; expected a number of at least 0")
    if status not in get_args(Status):
        raise ConfigError(f"status is {status!r:.80}; expected one of {get_args(Status)}")
