"""The calculator's task in many wordings: what the learning benchmarks train on and evaluate with."""

from __future__ import annotations

import random

from turnsmith.env.examples.calculator import Calculator

TRAINED = (
    "A box holds {each} pens. {groups} boxes arrive, and {less} pens are broken. How many good pens are there?",
    "{groups} boxes arrive with {each} pens in each. {less} pens are broken. How many pens are good?",
    "{less} eggs are cracked. There are {groups} trays with {each} eggs on each. How many eggs are whole?",
    "A farmer throws out {less} bad apples from {groups} crates of {each} apples. How many apples are left?",
    "Each shelf has {each} books, and there are {groups} shelves. {less} books are lent out. How many are there?",
    "A bus has {each} seats. {groups} buses come, and {less} seats stay empty. How many seats are taken?",
    "Ann earns {each} dollars a day for {groups} days and spends {less} dollars. How many dollars does she have?",
    "Tom spends {less} dollars. He had worked {groups} weeks at {each} dollars a week. How many dollars has he left?",
    "{groups} rows of {each} chairs are set out, and {less} chairs are taken away. How many chairs remain?",
    "Out of {groups} packs with {each} cards each, {less} cards are lost. How many cards are left?",
    "A baker makes {each} rolls an hour for {groups} hours. {less} rolls are burnt. How many rolls can be sold?",
    "Mia finds {less} torn stamps in {groups} pages with {each} stamps a page. How many stamps are whole?",
    "A field has {groups} rows of {each} plants. {less} plants are dead. How many plants are alive?",
    "Sam reads {each} pages a day for {groups} days. {less} pages are pictures. How many pages have text?",
    "{less} guests stayed away. {groups} tables for {each} guests had been booked. How many guests came?",
    "A truck carries {each} bricks. {groups} trucks come, and {less} bricks are thrown out. How many are used?",
    "Each class has {each} pupils. {less} pupils are ill. The school has {groups} classes. How many pupils are well?",
    "A crate holds {each} bottles. {less} bottles broke, of {groups} crates that were sent. How many are whole?",
)
HELD_OUT = (
    "A bag has {each} beads. Lea buys {groups} bags and loses {less} beads. How many beads does she have?",
    "{groups} trains with {each} passengers each arrive. {less} passengers stay on board. How many get out?",
    "{less} tiles were cracked in {groups} cartons of {each} tiles. How many tiles can be laid?",
    "Each tree bears {each} pears. There are {groups} trees, and birds eat {less} pears. How many pears are left?",
    "A printer prints {each} sheets a minute for {groups} minutes and spoils {less} sheets. How many are good?",
    "{less} runners gave up. {groups} teams of {each} runners had started. How many runners finished?",
    "A roll has {each} stickers. {less} stickers were used, of {groups} rolls. How many stickers are left?",
)


class WordProblems(Calculator):
    """`Calculator` in 18 wordings, or with `held_out=True` in 7 that training never shows.

    Which of the three numbers is subtracted, the last, the first or the one between, only the words say.
    """

    numbers: tuple[int, int, int] = (0, 0, 0)
    """How many things are in each group, how many groups, and how many things less."""

    def reset(self, seed: int = 0) -> str:
        """Draw the wording and the numbers from the seed."""
        draw = random.Random(seed)
        each, groups, less = self.numbers = draw.randint(11, 99), draw.randint(11, 99), draw.randint(11, 99)
        self.answer = each * groups - less
        wording = draw.choice(HELD_OUT if self.config.get("held_out") else TRAINED)
        return wording.format(each=each, groups=groups, less=less)
