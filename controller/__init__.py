"""The cluster's side of dradriver. Its rooms arrive with the bridge and migration controllers."""
