"""Begin with schema 1, whose tables a run of that time made."""

revision = "1"
down_revision = None


def upgrade() -> None:
    """Do nothing: no database is older."""
