"""Documents, dashboards and figures of what fusec reports about itself."""
