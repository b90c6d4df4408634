"""Attention that is translation-equivariant (RoPE) and explicitly local (LASPE, LAAPE)."""
