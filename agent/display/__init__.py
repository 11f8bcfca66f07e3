"""Display: what a person sees while a run goes on."""
