"""The suite on a GPU: fusec beside eager, Inductor and Inductor's max-autotune, case by case."""
