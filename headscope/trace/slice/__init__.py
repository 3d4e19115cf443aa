"""Operations between the hidden states and the scores."""
