"""Mutations of the product, each of which would make a wrong dataset without an exception.

Where an edit of the product changes an old text, the mutation is written anew: the fault counts.
"""

import re
from typing import NamedTuple


class Mutant(NamedTuple):
    """One fault, put into one module of the product, and the test that finds it."""

    room: str
    """The folder of tokflow/ that the module is in."""
    fault: str
    old: str
    """Text that occurs in the room exactly once."""
    new: str
    test: str
    """Name of a test function, which must fail."""


FAULTS = {
    "raw": r"""
a file that changes while it is hashed is taken
    - if (now := stamp_of(path)) != stamp or num_bytes != stamp.num_bytes:
    + if (now := stamp_of(path)) and num_bytes != stamp.num_bytes:
    test_a_file_that_grows_or_is_replaced_while_it_is_hashed_is_an_error
a file that was edited has the checksum of before
    - return sha256 if known == stamp else None
    + return sha256
    test_a_file_changed_to_the_same_size_and_mtime_is_hashed_again
a version that came during the download is taken for the one before
    - if access.probe() != version:
    + if False:
    test_a_file_that_changes_during_the_download_is_fetched_again
a file of the hub is taken without its sha256
    - elif hub is not None and hub.sha256 not in (None, sha256):
    + elif False:
    test_bytes_that_are_not_those_of_the_commit_are_refused
an answer from the beginning is appended to a part of the file
    - if body.offset != num_bytes:
    + if False:
    test_a_server_that_gives_no_range_or_another_is_asked_for_all_again
a damaged block on the disk is read
    - xxh3_64_hexdigest(data) == digest:
    + digest:
    test_a_block_of_which_bytes_are_lost_is_fetched_again
""",
    "documents": r"""
a reject is not written down
    - on_reject(path, Reject(bad.row, *place, reason, record=bad.record))
    + pass
    test_a_bad_document_is_an_error_or_is_set_aside
a range begins one line late
    - position -= 1  # of
    + position -= 0  # of
    test_what_is_before_the_range_is_not_read_for_rejects
the line at the seam of two ranges is cut
    - for position in (within.start, within.stop))
    + for position in (within.start,)), within.stop
    test_ranges_of_text_give_what_the_whole_gives
the last document loses its last byte
    - bytes(held + overlap)
    + bytes(held)
    test_lines_do_not_depend_on_blocks
a limit takes one document more
    - np.searchsorted(so_far, left)) + 1
    + np.searchsorted(so_far, left, side="right")) + 1
    test_reading_stops_after_the_document_that_reaches_the_limit
the rows of a group begin anew with each file
    - yield replace(found.batch, rows=found.batch.rows + first)
    + yield found.batch
    test_streams_and_their_index_are_those_of_single_files
the code of a transform decides nothing
    - fields["transform_sha256"] = config.user_function.sha256
    + pass
    test_the_source_and_the_version_decide_and_nothing_does_without_a_transform
""",
    "tokenizers": r"""
what follows a stop token is supervised
    - stop = end + len(text[end:said].rstrip())
    + stop = said
    test_an_odd_chat_has_the_turns_of_its_assistant_or_is_a_bad_document
the role header before an answer is supervised
    - start = before + self._remembered(
    + start = before + 0 * self._remembered(
    test_a_turn_is_all_after_the_generation_prompt_up_to_its_stop_token
special tokens that users spell become control tokens
    - if before >= 0 and places[before][1] > name.start():
    + if False:
    test_special_tokens_that_users_spell_stay_plain_text
words that a template leaves out are not missed
    - if found[key] < (1 if key[1] == NAME else num)
    + if False
    test_words_that_a_template_leaves_out_make_a_bad_document_unless_they_may
added tokens are cut by chunks
    - token for token in added if in_text == "control" or not token["special"]
    + token for token in added if False
    test_where_no_place_is_proven_a_document_goes_whole
a chunk begins with the space that ends the one before
    - start = match.end() + rule.num_dropped
    + start = match.end()
    test_sentencepiece_bpe_in_chunks_gives_the_tokens_of_the_whole
no sample is compared with the reference
    - if self.reference is None:
    + if True:
    test_an_engine_that_differs_on_a_document_of_the_shard_is_caught
a verdict on the fast engine is passed over
    - None if tokenizer.verdict is None else VERDICT + tokenizer.verdict
    + None
    test_gigatoken_by_force_fails_then_and_in_the_next_run
a vocabulary of one id too many gets 16 bits
    - if self.vocab_size <= 65_536
    + if self.vocab_size <= 65_537
    test_the_largest_id_is_written_as_it_is
special ids decide no tokenizer
    - config={name: details[name] for name in _SPECIAL},
    + config={},
    test_the_same_files_with_another_eos_are_another_tokenizer
the turns of the user are supervised
    - if of["role"] == "assistant"}
    + if of["role"] != "system"}
    test_without_generation_blocks_the_model_learns_what_it_has_to_emit
""",
    "tokens": r"""
stop tokens decide no token shard of chats
    - **({"stop_tokens": stops} if stops else {}),
    test_stop_tokens_come_with_the_tokenizer_and_make_no_other_tokenizer
an empty document has no EOS
    - > 0) | encoding.config.eos_of_empty
    + > 0)
    test_the_largest_id_is_written_as_it_is
an EOS within a text is accepted
    - if can_be_in_text or token_id is None or not
    + if role == "eos" or can_be_in_text or token_id is None or not
    test_the_id_of_eos_or_bos_inside_a_text_is_an_error_that_names_the_document
an id behind the vocabulary wraps
    - >= tokenizer.vocab_size:
    + > tokenizer.vocab_size:
    test_an_id_past_the_vocabulary_is_an_error_and_never_wraps
the EOS of every chat is supervised
    - of_eos = chat.is_supervised_to_its_end
    + of_eos = np.ones_like(chat.is_supervised_to_its_end)
    test_the_eos_of_a_chat_is_supervised_if_its_text_is_to_the_end_and_bos_never
the loss mask is shifted by one
    - self._stops = (chars + self._first
    + self._stops = (chars + 1 + self._first
    test_a_token_that_begins_in_the_prompt_and_ends_in_the_completion_is_counted
the documents of a second batch point at the tokens of the first
    - "token_offset": counts["num_tokens"] + np
    + "token_offset": np
    test_offsets_and_row_groups_do_not_depend_on_batches
the third segment of a shard begins where the second does
    - bases[column] += counts.get(num, 0)
    + bases[column] = counts.get(num, 0)
    test_what_is_made_of_segments_is_what_is_made_of_the_whole_file
the BOS decides no token shard
    -             "bos": config.bos,
    test_what_begins_and_ends_documents_decides_the_shard
tokens do not have their tokenizer as a parent
    - parents({"raw": raw.sha256, "tokenizer": tokenizer.fingerprint})
    + parents({"raw": raw.sha256})
    test_a_second_run_makes_nothing_and_verify_finds_nothing
""",
    "split": r"""
a part ends one character late
    - is_inside &= positions < stop
    + is_inside &= positions <= stop
    test_with_boundary_character_documents_are_cut_where_a_part_ends
the files before it do not count in a split of the dataset
    - to_numpy(documents["char_offset"]) + position.first_char
    + to_numpy(documents["char_offset"])
    test_each_document_belongs_to_the_part_that_the_rule_says
the files before it decide no split
    - fields |= {"position": before} if before else {}
    + pass
    test_a_split_is_made_again_where_a_byte_changes_and_nowhere_else
a document that is cut loses a character
    - text[start : start + size]
    + text[start : start + size - 1]
    test_many_spans_of_one_document_have_the_reference_s_tokens_of_each
a permutation repeats numbers
    - _added(column, hashes(row, key), width, is_inverse)
    + _added(column, hashes(column, key), width, is_inverse)
    test_every_number_has_one_place
a mixture takes a token too many
    - found = {name: int(share) for name, share in wanted.items()}
    + found = {name: round(share) for name, share in wanted.items()}
    test_files_of_few_documents_are_taken_whole_or_not_at_all_but_for_the_last
a document that the budget cuts has no EOS
    - tokens[ended] = eos_id or 0
    + pass
    test_realised_tokens_are_the_planned_ones_and_the_last_document_keeps_its_eos
""",
    "sequences": r"""
of a row that is left out, repeated tokens count as dropped
    - kept = replace(kept, num_repeated=num_repeated)
    + pass
    test_no_row_is_without_a_supervised_token_and_the_account_closes
a turn that goes on in a row counts as one more
    - begins[first] = is_turn[first] & ~has_before[some]
    + pass
    test_no_row_is_without_a_supervised_token_and_the_account_closes
a last sequence that is full is taken for the tail
    - stops[-1] - starts[-1] < config.stored_length
    + stops[-1] - starts[-1] <= config.stored_length
    test_rows_are_those_of_the_plain_model_or_what_holds_of_any_and_counted
the tail is kept where it is to be dropped
    - is_left_out[packed.num_sequences :] |= config.tail == "drop"
    + pass
    test_rows_are_those_of_the_plain_model_or_what_holds_of_any_and_counted
what a document has behind a sequence's edge is its beginning again
    - "token_start": spans.token_start[span] + segments.token_in_span,
    + "token_start": spans.token_start[span],
    test_a_document_cut_by_the_edge_starts_again_at_position_zero
padding counts as loss tokens
    - is_token if loss_mask is None else
    + np.ones_like(is_token) if loss_mask is None else
    test_segments_are_counted_in_each_row_and_positions_in_each_segment
""",
    "exports": r"""
a file copied ahead is taken though its tokens were replaced
    -  or self._stamps != [_stamp(path) for path in files]:
    + :
    test_what_is_not_all_tokens_or_was_replaced_since_is_not_taken_and_not_left
an index row names another document
    - row = file.rows()[columns["document"]]
    + row = columns["document"]
    test_index_trace_and_verify_lead_through
the index of a stream begins anew with each file
    - position += int(starts[-1])
    + position = int(starts[-1])
    test_streams_and_their_index_are_those_of_single_files
labels are those of tokens that are not supervised
    - np.where(is_label, token_ids, np.int32(NO_LABEL))
    + token_ids
    test_each_column_says_what_trainers_expect_of_its_name
padding has positions of its own
    - np.where(segment_ids != 0, positions.reshape(segment_ids.shape), np.int32(0))
    + positions.reshape(segment_ids.shape)
    test_fields_are_read_again_from_whatever_columns_tell_of_them
ids of 32 bits are written in 16
    - if options.dtype == "uint16" and part.vocab_size > 2**16:
    + if False:
    test_uint16_for_more_ids_is_refused
the seed of the sequences decides no export
    - fields |= shuffle_fields(order.sequences)
    + pass
    test_a_shuffle_is_in_the_recipe_of_exports_of_sequences_alone
""",
    "loaders": r"""
a training that goes on leaves a sample out
    - return Position(num_samples, skipped,
    + return Position(num_samples + 1, skipped,
    test_a_training_reads_what_a_plain_model_of_it_reads
two ranks have the same sample
    - return numbers[first:last]
    + return numbers[first : last + 1]
    test_a_training_reads_what_a_plain_model_of_it_reads
every epoch has the order of the first
    - rows[here] = self._order(epoch).at(places[here])
    + rows[here] = self._order(0).at(places[here])
    test_with_a_seed_each_epoch_has_every_row_once_in_an_order_of_its_own
the label of a document's last token is the next document's first
    - found &= before != 0 if self.across_documents else before == behind
    + found &= before != 0
    test_a_label_is_of_the_document_of_its_input
the end of a stream has a label behind it
    - sizes = self._num_pairs - starts
    + sizes = self._num_pairs - starts + 1
    test_the_last_row_is_padded_so_that_every_token_but_the_first_is_a_label_once
a later stage of a mixture has the rows of the first again
    - np.repeat(stage.taken + before -
    + np.repeat(before -
    test_a_training_reads_what_a_plain_model_of_it_reads
""",
    "store": r"""
a file has its name before it is whole
    - begun_beside(path.parents[1] if path.parent.name == OWN_FOLDER else path)
    + path
    test_a_file_is_replaced_whole_or_not_at_all
a folder has its name before it is whole
    - temporary = begun_beside(folder)
    -         self.callback(forget_copies, temporary)
    + temporary = folder
    +         self.callback(forget_copies, temporary)
    test_a_killed_process_leaves_what_no_reader_accepts_and_the_next_writer_removes
what was read is not compared before it is committed
    - _raise_damage(self._given.values(), self._unknown, cause=error)
    + return
    test_a_file_that_is_written_to_while_it_is_read_is_found
a file that was replaced while it was read is taken
    - now is None or now != before
    + False
    test_a_damaged_file_that_a_whole_one_replaces_while_it_is_read_is_found
a manifest is believed without its digest
    - if not has_its_digest(data):
    + if False:
    test_a_flipped_bit_is_found_in_every_byte
parents decide no fingerprint
    - joined_digest([f"{self._start}, {_as_json(self.parents)}]"])
    + joined_digest([f"{self._start}]"])
    test_each_ingredient_changes_the_fingerprint
a verdict that cannot be read is none
    - return f"{path} cannot be read"
    + return None
    test_a_verdict_names_what_it_is_of_and_counts_even_where_it_cannot_be_read
a manifest is put at a URL before its files
    - in_segments, equal = _in_segments(place, folder), equal_files(temporary, folder)
    + _commit(place, folder, data, temporary)
    +     in_segments, equal = {}, {}
    test_a_manifest_is_put_behind_all_files
an upload whose answer was lost is taken for done, whatever is there
    - if found != num_bytes:
    + if not is_gone:
    test_an_upload_that_is_gone_when_it_is_completed_again_is_an_error
numbers at a URL begin with the header
    - self._first_byte + of * self._item_bytes for
    + of * self._item_bytes for
    test_of_each_format_that_is_mapped_no_more_comes_than_the_beginning
""",
    "pools": r"""
a task whose process was killed has no result
    - again.append((task, attempt + 1))
    + pass
    test_a_task_whose_worker_is_killed_is_tried_once_more
""",
    "pipeline": r"""
an output that is known to be damaged is current
    - if store.is_known_damaged(self.folder):
    + if False:
    test_recheck_on_another_machine_finds_an_export_of_damaged_tokens
rejects that are an error now are current
    - if (reason := self.step.refused(manifest.counts, self.graph.dataset)) is None:
    + if True:
    test_a_bad_line_set_aside_is_an_error_again_once_it_is_to_be_one
each file of a limited dataset may take all
    - left = self._left[last].after(counts)
    + left = self._left[last]
    test_files_are_taken_until_the_limit_is_reached
the seed of a mixture decides nothing
    - seed = self._config.seed if is_drawn else 0
    + seed = 0
    test_another_seed_makes_the_files_again_of_which_not_all_is_taken
gc takes what the dataset refers to
    - [path for path in (*older, *damaged) if path not in used],
    + [*older, *damaged],
    test_an_export_that_is_declared_no_more_goes_with_its_link_and_its_sequences
exports are made without the file that failed
    -         if of_all and self.failed:
    -             return False
    -         return all(
    +         return all(
    test_one_bad_file_stops_no_other_and_completes_the_dataset_when_it_is_fixed
losses are not said
    -             if num := sum(self.tokens[of] for of in needed):
    +             if name not in LOSSES and (num := sum(self.tokens[of] for of in needed)):
    test_notices_of_a_mixture_are_of_its_sources_and_plain_text_is_supervised_whole
""",
    "components": r"""
the sensor does not see that a file was edited
    -         sorted(changes.stamps.items()),
    test_a_bad_file_is_tried_once_and_again_when_something_is_missing_or_it_is_fixed
a check that found something has passed
    - passed=not outcome.findings,
    + passed=True,
    test_a_check_that_fails_has_a_row_for_each_file_that_it_fails_in
what somebody else built anew is not recorded
    - key in failed or self.versions.get(key) != of
    + key in failed or key not in self.versions
    test_what_somebody_else_built_is_recorded
""",
    "audit": r"""
the ids of an export are not compared with the split
    - is_wrong = some[: len(wanted)] != wanted
    + is_wrong = some[: len(wanted)] != some[: len(wanted)]
    test_an_export_of_other_tokens_or_that_leads_elsewhere_is_found
a document without its EOS is no problem
    - np.flatnonzero(is_ended & ~has_it)
    + np.flatnonzero(has_it & ~has_it)
    test_an_id_past_the_vocabulary_and_an_eos_too_many_or_too_few_are_found
a split that is another when it is made again is no problem
    - if expected.get(name) != found.get(name):
    + if False:
    test_counts_that_do_not_close_are_found
a token is traced to the beginning of its document
    - entry["token_in_piece"] + begin - entry["position"]
    + entry["token_in_piece"]
    test_a_piece_of_a_character_leads_to_all_of_it
a proof that a text is gone does not look at mixtures
    - if has_documents_of(each.manifest, dataset.name):
    + if each.manifest.dataset == dataset.name:
    test_a_mixture_that_takes_the_dataset_is_looked_at_and_each_pass_is_named
documents with other tokens are the same
    - found |= unknown & (sums[0] != sums[1])
    + pass
    test_tokens_are_read_where_hashes_say_nothing
""",
    "exclusion": r"""
of the rows of a list that name documents of one shard only the first counts
    - documents = np.flatnonzero(to_numpy(first.is_valid()).astype(bool) & ~is_named)
    + documents = np.flatnonzero(to_numpy(first.is_valid()).astype(bool) & ~is_named)[:1]
    test_what_a_list_names_is_as_if_it_were_not_in_the_raw_files
""",
}
"""By room: each fault, the lines or the part of one that it takes away, those that it puts in their
place, and its test."""


def _mutants(room: str, faults: str) -> list[Mutant]:
    each = re.findall(r"^(\S.*)((?:\n    - .*)+)((?:\n    \+ .*)*)\n    (test_\w+)$", faults, re.M)
    return [
        Mutant(room, fault, *(re.sub(r"\n    [-+] ", "\n", text)[1:] for text in texts), test)
        for fault, *texts, test in each
    ]


MUTANTS = [of for room, faults in FAULTS.items() for of in _mutants(room, faults)]
