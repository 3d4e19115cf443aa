"""What the project is kept with: pages, the site, shipped facts, engines, house rules, releases."""
