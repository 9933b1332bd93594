"""What an experiment reports: estimates with intervals, comparisons at equal tokens, plots and a Markdown page."""
