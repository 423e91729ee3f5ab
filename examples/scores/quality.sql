-- The quality of each document as a linear classifier of words has it, which is what fastText is
-- without its n-grams: the mean of the weights of the words, from 0 to 1.
COPY (
    SELECT id, 1 / (1 + exp(-avg(coalesce(weight, 0)))) AS quality
    FROM (
        SELECT id, unnest(regexp_extract_all(lower(text), '\w+')) AS word
        FROM read_json('data/raw/scored/*.jsonl')
    )
    LEFT JOIN read_csv('weights.csv') USING (word)
    GROUP BY id
) TO 'data/scores/words.parquet' (FORMAT parquet);
