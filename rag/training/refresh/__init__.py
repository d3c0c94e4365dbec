"""What is made anew while a model trains: schedule, staleness, generations, exchange between processes."""
