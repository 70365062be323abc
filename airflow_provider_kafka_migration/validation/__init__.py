"""The checks of a validation: facts in, a check result out. The phase runs them and judges the whole."""
