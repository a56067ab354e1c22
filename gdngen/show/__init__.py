"""What the command line shows of plans: rows, sentences, comparisons. Nothing here prints."""
