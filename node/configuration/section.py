"""What every section of the configuration is: frozen, and without unknown keys."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict

# Otherwise pydantic reads what each installed package declares, a third of the time that this import takes, and
# runs those that call themselves its plug-ins. A node runs no code that nobody chose.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


class ConfigSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
