"""Speed, shown: peers beside us in the same run, medians of several rounds, ratios, and a bare-metal limit."""
