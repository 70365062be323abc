"""Record batches as bytes: headers, records, packing. No I/O."""
