"""The spec language: text of a spec -> located tree -> `Spec`, every mistake reported, nothing resolved."""
