"""Where jobs run: the protocol of a back end, the site profile that names one, and the two of the package."""
