"""Parts of the evaluation of a benchmark: where its samples are kept, how they are judged again, its summary."""
