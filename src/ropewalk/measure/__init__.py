"""The three experiments of the articles, for every encoding: scores at some distances, decay, and word order."""
