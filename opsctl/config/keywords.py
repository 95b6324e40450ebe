"""The words of a playbook: plays, blocks and tasks as users write them.

These models are the one source of the check at load time, of the JSON schema and of the reference. Words of
Ansible's that do not exist here stand in `refused.py`, each with what to use instead.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from .fields import (
    BecomeMethod,
    Boolean,
    Conditions,
    Connection,
    Environment,
    Flag,
    HandlerList,
    Hosts,
    Identifier,
    Loop,
    LoopControlField,
    Names,
    Order,
    Percentage,
    Port,
    Retries,
    Seconds,
    Serial,
    Strategy,
    Tags,
    TaskList,
    TextField,
    VarsField,
)


class _Words(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, defer_build=True)


class Common(_Words):
    """What plays, blocks and tasks have in common. The innermost value wins, unless said otherwise."""

    name: TextField = Field(None, description="What is shown for it; may hold templates.")
    vars: VarsField = Field({}, description="Variables for everything below (inventory.md says which value wins).")
    tags: Tags = Field(
        (),
        description="Names for `--tags` and `--skip-tags`; added to those of the outer levels. "
        "`always` runs whatever tags are asked for, `never` only when one of its tags is.",
    )
    become: Flag = Field(None, description="Act as another user, by sudo.")
    become_user: TextField = Field(None, description="Who to become; `root` when not given.")
    become_method: BecomeMethod = Field(None, description="Only `sudo`.")
    environment: Environment = Field((), description="Environment variables; inner levels are laid over outer ones.")
    no_log: Flag = Field(None, description="Keep arguments and results out of every output and of the journal.")
    check_mode: Boolean = Field(None, description="`no` runs the task under `--check` too; `yes` always only predicts.")
    diff: Boolean = Field(None, description="Show, or do not show, what would change in files.")
    ignore_errors: Flag = Field(None, description="Go on when a task fails; the outcome is `ignored`.")
    any_errors_fatal: Boolean = Field(None, description="A failure on one host ends the play on all of them.")
    run_once: Flag = Field(None, description="Run on the first host only; its result is every host's.")
    timeout: Seconds = Field(
        None, description="Seconds after which the task is ended and has failed; no limit without it."
    )


class BlockWords(Common):
    """A block: tasks that share keywords, with an optional `rescue` and `always`."""

    block: TaskList = Field([], description="The tasks.")
    rescue: TaskList = Field([], description="Run when a task of the block failed; then the block counts as rescued.")
    always: TaskList = Field([], description="Run last, whatever happened.")
    when: Conditions = Field((), description="A condition, or several that must all hold, for every task of the block.")
    notify: Names = Field((), description="Handlers that each changed task of the block notifies.")
    delegate_to: TextField = Field(None, description="Run on another host, with this host's variables.")


class TaskWords(Common):
    """The keywords of a task. Beside them stands exactly one key that names the task kind."""

    when: Conditions = Field(
        (), description="A bare expression, or several that must all hold; it must be true or false."
    )
    loop: Loop = Field(None, description="A list, or a template that yields one: the task runs for each `item`.")
    loop_control: LoopControlField = Field(None, description="Names of the loop's variables; see below.")
    # The attribute cannot be called `register`: ABCs have a method of that name.
    register_: Identifier = Field(None, alias="register", description="The variable that receives the result.")
    until: Conditions = Field((), description="Try again until this holds (see `retries`, `delay`).")
    retries: Retries = Field(3, description="How often `until` is tried again.")
    delay: Seconds = Field(5, description="Seconds between the tries.")
    notify: Names = Field((), description="Handlers that run at the end of the play if this task changed something.")
    changed_when: Conditions = Field(None, description="Whether the result counts as a change.")
    failed_when: Conditions = Field(None, description="Whether the result counts as a failure.")
    delegate_to: TextField = Field(
        None, description="Run on another host (`localhost` is the controller), with this host's variables."
    )
    args: VarsField = Field({}, description="Further arguments of the task kind, beside a free-form string.")


class HandlerWords(TaskWords):
    """A handler: a task that runs when a changed task notifies its name, or a topic that it listens to."""

    listen: Names = Field((), description="Topics that also notify this handler.")


class LoopControlWords(_Words):
    """How a loop is run and shown."""

    loop_var: Identifier = Field("item", description="The name of the item's variable.")
    index_var: Identifier = Field(None, description="The name of a variable with the position, from 0.")
    label: TextField = Field(None, description="What is shown for an item, instead of the whole of it.")
    pause: Seconds = Field(0, description="Seconds to wait between two items.")
    extended: Boolean = Field(
        False,
        description="Tell `ansible_loop` (which has `index`, `index0`, `first`, `last`, `length`) of the other items too: "
        "`previtem`, `nextitem`, `allitems`, `revindex`, `revindex0`.",
    )


class PlayWords(Common):
    """A play: which hosts, as whom, and what is to be true there."""

    hosts: Hosts = Field(
        ...,
        description="A pattern: `all`, a group or host, `a:b` (or `a,b`), `a:!b`, `a:&b`, "
        "`web*`, "
        "`~regex`, `group[0]`, `group[1:3]`.",
    )
    tasks: TaskList = Field([], description="The tasks, in order.")
    pre_tasks: TaskList = Field([], description="Tasks before `tasks`; handlers run between the two.")
    post_tasks: TaskList = Field([], description="Tasks after `tasks`; handlers run between the two.")
    handlers: HandlerList = Field([], description="Tasks that run at the end of the play if they were notified.")
    vars_files: Names = Field((), description="YAML files with variables, relative to the playbook.")
    gather_facts: Boolean = Field(
        None,
        description="Facts are gathered when something uses them; `yes` always gathers. `no` is accepted: nothing is "
        "gathered that is not used.",
    )
    serial: Serial = Field((), description="Hosts a batch: a number, a percentage, or a list of them (`[1, 5, 30%]`).")
    max_fail_percentage: Percentage = Field(
        None, description="Stop after a batch in which more hosts than this failed."
    )
    ignore_unreachable: Boolean = Field(
        None,
        description="A host to which no connection can be made counts as `ignored`, and later plays try it again. A host "
        "that is lost in the middle of its tasks is `unreachable` all the same: what it still does cannot be known.",
    )
    force_handlers: Boolean = Field(None, description="Run notified handlers even when the host failed.")
    strategy: Strategy = Field(
        None,
        description="Accepted for Ansible's sake: hosts always go through a play "
        "independently (`free`). Plays, `serial` batches, `run_once` and `any_errors_fatal` "
        "are where they wait for each other.",
    )
    order: Order = Field(None, description="Only `inventory`.")
    remote_user: TextField = Field(None, description="Who to log in as, unless the inventory says `ansible_user`.")
    connection: Connection = Field(
        None, description="`ssh` or `local`, unless the inventory says `ansible_connection`."
    )
    port: Port = Field(None, description="The port of sshd, unless the inventory says `ansible_port`.")


class ImportPlaybookWords(_Words):
    """Plays of another file, in this place."""

    import_playbook: TextField = Field(..., description="The file, relative to this one.")
    name: TextField = Field(None, description="For readers of the file only.")
    when: Conditions = Field((), description="A condition for every task of the imported plays.")
    tags: Tags = Field((), description="Tags for every task of the imported plays.")
    vars: VarsField = Field({}, description="Variables for the imported plays; the file's own win.")


class IncludeWords(Common):
    """The keywords beside `include_tasks` and `import_tasks`; they apply to every task of the file."""

    when: Conditions = Field((), description="A condition for every included task.")
    loop: Loop = Field(None, description="Include the file once an item; the list must be known before the play.")
    loop_control: LoopControlField = Field(None, description="Names of the loop's variables.")
    notify: Names = Field((), description="Handlers that each changed included task notifies.")
    delegate_to: TextField = Field(None, description="Run the included tasks on another host.")
