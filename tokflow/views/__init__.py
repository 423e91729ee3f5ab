"""Views: pages for people about what was built, the report of a dataset and the viewer of an
export."""
