"""Apps that are bound in code to another database than the one that is worked on: their jobs go where nobody looks."""

from __future__ import annotations

from collections.abc import Iterator

from forge.app import Forge
from forge.config import Config, same_database, shown_url
from forge.errors import ForgeError
from forge.worker.modules import Known

__all__ = ["bound_elsewhere", "elsewhere"]


def elsewhere(known: Known, config: Config) -> Iterator[str]:
    """A sentence for each app with tasks that is. One without tasks only enqueues, perhaps for others."""
    for app in known.apps:
        kinds = sorted(app.tasks)
        if kinds:
            more = f" and {len(kinds) - 1} more" if len(kinds) > 1 else ""
            try:
                found = bound_elsewhere(app, f"{kinds[0]}{more}", config)
            except ForgeError as e:
                found = f"the app of {kinds[0]}{more} has no database that can be used: {e}"
            if found is not None:
                yield found


def bound_elsewhere(app: Forge, kinds: str, config: Config) -> str | None:
    """`the app of tasks.add is bound to … in code, not to …`, if it is: the app that has these kinds. Opens nothing."""
    if app._lazy_storage.is_lent:
        return None
    own = app._lazy_storage.read_config()
    here = [config.database, *([config.listen_database] if config.listen_database else [])]
    if not any(same_database(own.database, url) for url in here):
        bound, not_to = shown_url(own.database), shown_url(config.database)
    elif not own.database.startswith("sqlite:") and own.schema != config.schema:
        bound, not_to = f"the schema {own.schema}", str(config.schema)
    else:
        return None
    return (
        f"the app of {kinds} is bound to {bound} in code, not to {not_to}: what it enqueues is not run from here; "
        "write Forge() there, or name that database with --database"
    )
