"""``make mirror-demo``: two clusters mirror each other, and consumer groups fail over, without reading anything twice.

Like the demo of a migration it uses no product code, only the product's command line.
"""
