"""`lanesim evidence`: a campaign in steps that resume."""
