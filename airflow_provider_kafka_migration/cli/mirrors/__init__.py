"""Commands of ``kafka-migration mirror`` that are more than a request to the mirror."""
