"""Makes data files of one schema from data sets of others, and checks them before a run reads them."""
