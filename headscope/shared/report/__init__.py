"""What screens say of a report: the verdict, facts by lines, findings."""
