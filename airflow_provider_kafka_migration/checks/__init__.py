"""The checks of the precheck, one module per subject. Each yields findings and changes nothing."""
