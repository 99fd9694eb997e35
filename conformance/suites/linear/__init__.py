"""Linear layers whose weight is frozen, in few bits or cut over ranks, and the small matrices that are trained."""
