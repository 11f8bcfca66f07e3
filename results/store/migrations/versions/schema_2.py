"""Keep the lessons that models were told of, and no sum of seconds, which follows from the evaluations."""

from alembic import op
from sqlalchemy import Column, Text

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Change the table of tasks."""
    op.add_column("tasks", Column("lessons", Text, nullable=False, server_default="{}"))
    op.drop_column("tasks", "seconds")
