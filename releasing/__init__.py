"""What a release takes: distributions, the check of an installed wheel, licences, a bill of materials."""
